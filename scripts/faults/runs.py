"""Runs that are killed and gone on with: learners of every kind, ``owlrl train``, ``reproduce``, Dask."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from owlrl.cli import main as owlrl_command
from owlrl.experiments.results import without_times
from scripts.faults.checks import CannotRunError, Outcome, check
from tests.experiments.signs import write_study
from tests.going_on import RUNS
from tests.test_going_on import check as check_going_on

ROOT = Path(__file__).parent.parent.parent
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
STUDY = """
from tests.experiments.signs import plain, shifted
from tests.experiments.test_visits import own_dqn as make_model

tasks, steps, eval_episodes = {"plain": plain, "shifted": shifted}, 1_000, 2
"""
PATIENCE = 120.0  # seconds that a process has to end by itself, or after a signal


@check(
    "learners that go on in a new process, at a border and inside a task", short=0, quick=3, full=len(RUNS)
)
def resumes(count: int, rng: random.Random, directory: Path) -> Outcome:
    """Each kind of learner, saved at both moments: the end must be bit-equal to that of a run in one go."""
    outcome, kinds = Outcome(), rng.sample(sorted(RUNS), min(count, len(RUNS)))
    for kind in kinds:
        try:
            check_going_on((kind,), directory)
            said = ""
        except AssertionError as error:
            said = f"{kind}: {str(error)[:300]}"
        outcome.judge(not said, said)
    outcome.note = f"kinds, each saved twice: {', '.join(kinds)}"
    return outcome


def _start(arguments: list[str], log: Path) -> int:
    """The id of a process that does what ``owlrl`` does with these arguments."""
    if not hasattr(os, "fork"):
        raise CannotRunError("needs processes that can be forked")
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
        with open(log, "w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        ended = owlrl_command(arguments)
        code = ended if isinstance(ended, int) else 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except KeyboardInterrupt:
        code = 130
    finally:
        os._exit(code)


def _ended(child: int, seconds: float) -> int | None:
    """The exit code of a process, negative for a signal; None if it is still there after ``seconds``."""
    until = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= until:
            return None
        time.sleep(0.005)


def _stop(child: int, number: int) -> bool:
    """Send a signal; whether the process ended, by itself or by it."""
    os.kill(child, number)
    if _ended(child, PATIENCE) is not None:
        return True
    os.kill(child, signal.SIGKILL)
    _ended(child, PATIENCE)
    return False


def _differences(one: Path, other: Path) -> list[str]:
    """What differs between two directories of results: rows without times, bytes of checkpoints, names.

    Pages are left out, since they show times.
    """
    names = [
        sorted(path.name for path in place.iterdir() if path.suffix != ".html") for place in (one, other)
    ]
    if names[0] != names[1]:
        return [f"files {names[1]}, not {names[0]}"]
    found = []
    for name in names[0]:
        if name.endswith(".jsonl"):
            texts = [(directory / name).read_text().splitlines() for directory in (one, other)]
            rows = [[without_times(json.loads(line)) for line in text[1:]] for text in texts]
            same = rows[0] == rows[1]
        else:
            same = (one / name).read_bytes() == (other / name).read_bytes()
        found += [] if same else [f"{name} differs"]
    return found


def _killed(
    count: int, rng: random.Random, directory: Path, arguments: Callable[[Path], list[str]]
) -> Outcome:
    """Kill a command until it was killed ``count`` times, and go on with it each time."""
    outcome, kills, runs = Outcome(), dict.fromkeys(SIGNALS, 0), 0
    whole, log = directory / "whole", directory / "log"
    begun = time.monotonic()
    if _ended(_start(arguments(whole), log), 10 * PATIENCE) != 0:
        return Outcome(1, [f"the command fails without a kill: {log.read_text()[-300:]}"])
    seconds = time.monotonic() - begun
    while sum(kills.values()) < count:
        runs, attempts, code = runs + 1, 0, None
        target = directory / f"killed-{runs}"
        while code is None:
            attempts += 1
            child = _start(arguments(target), log)
            last = attempts > 30 or sum(kills.values()) >= count
            code = _ended(child, 10 * PATIENCE if last else rng.uniform(0.0, seconds))
            if code is None:
                number = rng.choice(SIGNALS)
                kills[number] += 1
                outcome.judge(_stop(child, number), f"run {runs}: did not end after {number.name}")
        wrong = [f"exit code {code}: {log.read_text()[-300:]}"] if code else _differences(whole, target)
        outcome.faults += [f"run {runs}, gone on with {attempts - 1} times: {each}" for each in wrong]
    counts = ", ".join(f"{number.name} {times}" for number, times in kills.items())
    outcome.note = f"{counts}; {runs} runs to their end, results and checkpoints bit-equal to one in one go"
    return outcome


@check("owlrl train, killed inside and between tasks", short=1, quick=15, full=100)
def train(count: int, rng: random.Random, directory: Path) -> Outcome:
    """After each kill the same command goes on; result and checkpoint must be those of a run in one go."""

    def arguments(target: Path) -> list[str]:
        small = ["--tasks", "Crossroads-2", "--frames", "500", "--policies", "oracle", "--episodes", "2"]
        return ["train", *small, "--save-every", "0.05", "--output", str(target)]

    return _killed(count, rng, directory, arguments)


@check("owlrl reproduce, killed", short=0, quick=3, full=12)
def reproduce(count: int, rng: random.Random, directory: Path) -> Outcome:
    """The same for a study of several runs."""

    def arguments(target: Path) -> list[str]:
        small = ["crossroads", "--seeds", "1", "--methods", "owl-memory", "--frames", "400"]
        return ["reproduce", *small, "--save-every", "0.05", "--output", str(target)]

    return _killed(count, rng, directory, arguments)


@check("owlrl compare, killed inside and between tasks", short=0, quick=5, full=20)
def compare(count: int, rng: random.Random, directory: Path) -> Outcome:
    """The same for a comparison of one's own tasks and model."""
    study = write_study(directory, STUDY)

    def arguments(target: Path) -> list[str]:
        small = [str(study), "--methods", "bare", "owl", "--seeds", "1"]
        return ["compare", *small, "--save-every", "0.05", "--output", str(target)]

    return _killed(count, rng, directory, arguments)


@check("owlrl compare --jobs 2, killed", short=0, quick=2, full=10)
def workers(count: int, rng: random.Random, directory: Path) -> Outcome:
    """The same for two processes, which are left to themselves when the one that started them is killed."""
    study = write_study(directory, STUDY)

    def arguments(target: Path) -> list[str]:
        small = [str(study), "--methods", "bare", "owl", "--seeds", "2", "--jobs", "2"]
        return ["compare", *small, "--save-every", "0.05", "--output", str(target)]

    return _killed(count, rng, directory, arguments)


@check("a Dask worker, killed in the middle of its run", short=0, quick=1, full=3)
def worker(count: int, rng: random.Random, directory: Path) -> Outcome:
    """Five runs on two workers, one of which is killed: all five results must be those of runs in one go."""
    if importlib.util.find_spec("distributed") is None:
        raise CannotRunError('needs the extra "cluster"')
    outcome = Outcome()
    command = [sys.executable, "-m", "pytest", "-q", "-m", "slow", "-p", "no:cacheprovider"]
    for _ in range(count):
        done = subprocess.run(
            [*command, "tests/experiments/test_cluster.py", "-k", "killed_worker"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        outcome.judge(done.returncode == 0 and "1 passed" in done.stdout, done.stdout[-300:])
    outcome.note = "five runs on two workers each time"
    return outcome
