"""The command ``owlrl``: train, evaluate, compare, diagnose, reproduce, report, demo."""

from __future__ import annotations

import importlib
import io
import os
import shutil
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Annotated, Any, Union

from owlrl import __version__
from owlrl.errors import OwlError, OwlStateError, install_hint
from owlrl.experiments.commands import Compare, Demo, Diagnose, Evaluate, Report, Reproduce, Train

__all__ = ["main"]

STOPPED, CLOSED = 130, 141  # what a shell gives after Ctrl-C, and where nobody reads on: owlrl … | head
COLUMNS = 60  # with much fewer the help cannot be laid out
BROKEN, WHOLE = 70, "OWLRL_TRACEBACK"  # a mistake of ours; and where all of it is shown
EXAMPLES = {
    "demo": """Show in two minutes what one head cannot do and OWL can.

  owlrl demo
  owlrl demo --arms 6 --seed 1 --picture demo.png
  owlrl demo pendulum
  owlrl demo stream
""",
    "compare": """Compare methods on your own tasks with your own model, defined in a Python file.

  owlrl compare my_study.py
  owlrl compare my_study.py --jobs 2 --seeds 5 --output runs/mine
  owlrl compare my_study.py --methods bare alone owl --steps 2000

The file has, for example:

  tasks = {"forward": make_forward, "backward": make_backward}   # Gymnasium ids, or functions of a seed
  steps, methods, seeds = 50_000, ["bare", "alone", "owl"], 5
  def make_model(env, seed):
      return stable_baselines3.SAC("MlpPolicy", env, seed=seed)
""",
    "diagnose": """Measure how much the tasks of a study file contradict each other, before any run.

  owlrl diagnose my_study.py
  owlrl diagnose my_study.py --steps 5000
""",
    "train": """Train a method on tasks one after the other, and evaluate it.

  owlrl train --tasks SC3
  owlrl train --env-id owlrl/SimpleCrossing-v0 --levels 3 7 14 --method owl --json
  owlrl train --env-id MiniGrid-LavaCrossingS9N1-v0 --levels 1 2
  owlrl train --env-id CartPole-v1 --levels 1 2 3
  owlrl train --tasks Crossroads-4 --arguments breadcrumbs=true --frames 30000
  owlrl train --env-id owlrl/Pendulum-v0 --angles 90 -90 --json
""",
    "evaluate": """Evaluate a trained run, on its own tasks or on any levels.

  owlrl evaluate runs/sc3-owl-memory-s0-….safetensors
  owlrl evaluate runs/….safetensors --levels 1 2 3 --policies hedge+td random --json
""",
    "reproduce": """Make all runs of a study, several at once, and print its tables.

  owlrl reproduce --list
  owlrl reproduce sc3 --seeds 3 --jobs 2
  owlrl reproduce sc5 --seeds 1 --methods owl-memory --frames 30000
  owlrl reproduce headline --seeds 10 --jobs 8 --backend dask --scheduler tcp://host:8786
  owlrl reproduce headline --list
""",
    "report": """Write tables and pictures of all results in a directory to one page.

  owlrl report runs
  owlrl report runs --output report.html --episodes 1
""",
}
KEEPING = ("train", "reproduce", "compare")
NAMED = ("demo", "reproduce")  # whose --name may be left out
COMMANDS = {
    "demo": Demo,
    "compare": Compare,
    "diagnose": Diagnose,
    "train": Train,
    "evaluate": Evaluate,
    "reproduce": Reproduce,
    "report": Report,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code. Bad input gives one line on stderr and 2.

    >>> from owlrl.cli import main
    >>> main(["reproduce", "sc3", "--list", "--seeds", "1", "--output", "nowhere"])
    missing sc3-experience-replay-s0-b1d8961f
    missing sc3-owl-s0-afb61de7
    missing sc3-owl-memory-s0-0e81ab88
    0
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with _usable_terminal():
            try:
                return _run(given)
            finally:
                sys.stdout.flush()  # or a closed pipe is only noticed when the interpreter ends
    except BrokenPipeError:
        _read_no_more()
        return CLOSED
    except KeyboardInterrupt:
        kept = "; finished work is kept, the same command continues from there"
        _say(f"stopped{kept if given[:1] and given[0] in KEEPING else ''}")
        return STOPPED
    except (OwlError, OSError, MemoryError) as error:
        _say(f"{error}" or "there is not enough memory")
        return 2
    except Exception as error:  # a bug of ours: one line instead of a page of code
        if os.environ.get(WHOLE):
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        _say(
            f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno}); this is a "
            f"bug: please report it with the full output of {WHOLE}=1 owlrl …"
        )
        return BROKEN


@contextmanager
def _usable_terminal() -> Iterator[None]:
    """Make sure of open streams that take any character, a terminal width and a current directory."""
    try:
        Path.cwd()
    except FileNotFoundError as error:  # in which torch would end the process
        raise OwlStateError("the current directory was removed; go to another one first") from error
    with ExitStack() as stack:
        nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        if sys.stdout is None:  # it was closed: owlrl … >&-
            stack.enter_context(redirect_stdout(nowhere))
        if sys.stderr is None:
            stack.enter_context(redirect_stderr(nowhere))
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # which in an ASCII world refuses an ellipsis
                stream.reconfigure(errors="backslashreplace")
        if shutil.get_terminal_size().columns < COLUMNS:
            stack.enter_context(_environment("COLUMNS", str(COLUMNS)))
        yield


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _say(text: str) -> None:
    """Write one line to stderr, if it is open."""
    with suppress(OSError, ValueError):
        print(f"owlrl: {' '.join(text.split())}", file=sys.stderr, flush=True)


def _read_no_more() -> None:
    """Discard what the interpreter flushes at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run(given: list[str]) -> int:
    if given[:1] in (["--version"], ["-V"]):
        print(f"owlrl {__version__}")
        return 0
    if given[:1] in ([], ["--help"], ["-h"]):
        print(_overview(), file=sys.stdout if given else sys.stderr)
        return 0 if given else 2
    return int(_parse(given)())


def _overview() -> str:
    """All commands, each with its purpose and an example."""
    lines = [
        f"owlrl {__version__}: continual reinforcement learning around the learner you have.",
        "",
        "usage: owlrl COMMAND [OPTIONS]; owlrl COMMAND --help shows all options and more examples.",
        "",
    ]
    for name, text in EXAMPLES.items():
        about, _, rest = text.partition("\n")
        example = next(line.strip() for line in rest.splitlines() if line.startswith("  owlrl "))
        lines += [f"  {name:11}{about}", f"{'':13}{example}", ""]
    return "\n".join([*lines, "From Python: owlrl.OwlWrapper(model), owlrl.experiments.compare(...)."])


def _parse(arguments: list[str]) -> Any:
    try:
        tyro = importlib.import_module("tyro")
    except ImportError as error:
        raise OwlStateError(f"the command needs tyro ({error}); {install_hint('cli')}") from error
    command, *rest = arguments
    if command in NAMED and rest and not rest[0].startswith("-"):
        arguments = [command, "--name", *rest]
    kinds = tuple(
        Annotated[kind, tyro.conf.subcommand(name, description=EXAMPLES[name], prefix_name=False)]
        for name, kind in COMMANDS.items()
    )
    return tyro.cli(
        Union[kinds],  # noqa: UP007  # made from a tuple
        prog="owlrl",
        description="Continual reinforcement learning: owlrl COMMAND --help shows examples.",
        args=arguments,
        config=(tyro.conf.PositionalRequiredArgs, tyro.conf.FlagCreatePairsOff),
    )


if __name__ == "__main__":
    sys.exit(main())
