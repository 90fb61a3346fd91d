"""The command line in odd situations: without HOME, with closed streams, into places not to be written to."""

from __future__ import annotations

import os
import random
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from scripts.faults.checks import CannotRunError, Outcome, check
from scripts.faults.runs import PATIENCE, ROOT, STUDY
from tests.experiments.signs import write_study

SMALL = "--tasks Crossroads-2 --frames 300 --policies oracle --episodes 2"
SHORT = "--methods bare --seeds 1 --steps 200"

# What is done to a command line of the shell; {} is the command.
USUAL = "as it should be"
SITUATIONS = {
    USUAL: "{}",
    "without HOME": "env -u HOME {}",
    "a HOME that does not exist": "HOME=/nowhere/at/all {}",
    "a HOME that is a file": "HOME=file {}",
    "a HOME that cannot be written to": "HOME=/proc {}",
    "no directory for temporary files": "TMPDIR=/nowhere {}",
    "a terminal of 0 columns": "COLUMNS=0 {}",
    "a terminal of 1 column": "COLUMNS=1 {}",
    "a width that is no number": "COLUMNS=wide {}",
    "no terminal": "env -u TERM {}",
    "a dumb terminal": "TERM=dumb {}",
    "ASCII only": "PYTHONIOENCODING=ascii LC_ALL=C {}",
    "an almost empty environment": 'env -i PATH="$PATH" PYTHONPATH="$PYTHONPATH" {}',
    "input closed": "{} <&-",
    "output closed": "{} >&-",
    "errors closed": "{} 2>&-",
    "all closed": "{} <&- >&- 2>&-",
    "into a pipe that nobody reads": "{} | true",
    "errors into a pipe that nobody reads": "{} 2>&1 >/dev/null | true",
    "onto a full disk": "{} > /dev/full",
    "errors onto a full disk": "{} 2> /dev/full",
    "in a directory that is gone": "mkdir gone && cd gone && rmdir ../gone && {}",
    "in a directory that cannot be written to": "cd /proc && {}",
    "few open files": "ulimit -n 40; {}",
    "no files may grow": "ulimit -f 0; {}",
}
COMMANDS = {
    "--version": "--version",
    "--help": "--help",
    "train --help": "train --help",
    "reproduce --list": "reproduce --list",
    "train": f"train {SMALL} --output {{here}}/new-{{number}}",
    "train, finished": f"train {SMALL} --output {{here}}/runs",
    "evaluate": "evaluate {checkpoint} --episodes 1",
    "report": "report {here}/runs --output {here}/report-{number}.html --episodes 0",
    "compare": f"compare {{here}}/my_study.py {SHORT} --output {{here}}/compared-{{number}}",
    "diagnose": "diagnose {here}/my_study.py",
}
PLACES = {  # instead of a file or a directory
    "a file": "{here}/file",
    "below a file": "{here}/file/runs",
    "nothing": "{here}/missing",
    "no name": "''",
    "a device": "/dev/null",
    "a full disk": "/dev/full",
    "/proc": "/proc/runs",
    "a long name": "{here}/" + "x" * 300,
    "a control character in a name": "$'{here}/a\\001b'",
    "a directory": "{here}/empty",
    "a link to itself": "{here}/loop",
    "damaged": "{here}/damaged.safetensors",
    "damaged results": "{here}/damaged",
    "half a study": "{here}/half.py",
}
TAKEN = {
    "train to": f"train {SMALL} --output {{place}}",
    "evaluate": "evaluate {place}",
    "report of": "report {place}",
    "report to": "report {here}/runs --episodes 0 --output {place}",
    "reproduce to": "reproduce crossroads --list --output {place}",
    "compare": "compare {place}",
    "compare to": f"compare {{here}}/my_study.py {SHORT} --output {{place}}",
    "diagnose": "diagnose {place}",
}


def situations() -> list[tuple[str, str, str]]:
    """What it is, the command's arguments and the line of the shell, of every case."""
    odd = [
        (f"{name}: {what}", arguments, line)
        for what, line in SITUATIONS.items()
        for name, arguments in COMMANDS.items()
    ]
    places = [
        (f"{name} {what}", arguments.replace("{place}", place), "{}")
        for what, place in PLACES.items()
        for name, arguments in TAKEN.items()
    ]
    return odd + places


def prepare(here: Path, start: Callable[[str], subprocess.CompletedProcess[str]]) -> Path:
    """The files that commands are given; the checkpoint of a small run."""
    here.mkdir()
    (here / "empty").mkdir()
    (here / "file").write_text("some text\n")
    (here / "loop").symlink_to(here / "loop")
    (here / "half.py").write_text("tasks = {'a': lambda seed: None\n")
    write_study(here, STUDY)
    done = start(f"train {SMALL} --output {here}/runs")
    checkpoint = next((here / "runs").glob("*.safetensors"), None)
    if done.returncode or checkpoint is None:
        raise CannotRunError(f"a small run failed: {done.stderr[-300:]}")
    content = checkpoint.read_bytes()
    (here / "damaged.safetensors").write_bytes(content[: len(content) // 2])
    shutil.copytree(here / "runs", here / "damaged")
    for path in (here / "damaged").glob("*.jsonl"):
        path.write_text(path.read_text()[:100] + "\x00{[")
    return checkpoint


@check("commands in odd situations, none ends in a traceback", short=0, quick=25, full=10_000)
def commands(count: int, rng: random.Random, directory: Path) -> Outcome:
    """Each in a process of its own: it ends by itself, and says what is wrong in words."""
    if shutil.which("bash") is None:
        raise CannotRunError("needs bash")
    outcome, here = Outcome(), directory / "here"
    command = shlex.join([sys.executable, "-c", "from owlrl.cli import main; raise SystemExit(main())"])
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}

    def start(arguments: str, line: str = "{}") -> subprocess.CompletedProcess[str]:
        shell = ["bash", "-c", line.replace("{}", f"{command} {arguments}")]
        told = {"capture_output": True, "text": True, "errors": "replace", "timeout": PATIENCE}
        return subprocess.run(shell, cwd=here, env=environment, check=False, **told)

    checkpoint, cases, codes = prepare(here, start), situations(), dict[int, int]()
    for number, (what, arguments, line) in enumerate(rng.sample(cases, min(count, len(cases)))):
        filled = arguments.format(here=here, number=number, checkpoint=checkpoint)
        try:
            done = start(filled, line)
            said = done.stdout + done.stderr
            fine = (0,) if what.endswith(USUAL) else (0, 2, 141)  # 2: refused, 141: by a pipe
            good = done.returncode in fine and "Traceback" not in said and "Exception ignored" not in said
            codes[done.returncode] = codes.get(done.returncode, 0) + 1
        except subprocess.TimeoutExpired:
            said, good = "it did not end", False
        outcome.judge(good, f"{what}: {said[-300:]}")
    outcome.note = "exit codes " + ", ".join(f"{code}: {times}" for code, times in sorted(codes.items()))
    return outcome
