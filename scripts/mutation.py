"""Mutation testing: are the tests able to fail? Drawing the sample needs ``cosmic-ray`` 8.

    python -m scripts.mutation sample     # draws mutants; of a sample that is there, in place of those gone
    python -m scripts.mutation run        # runs tests against each, or goes on: tests/mutants/results.json
    python -m scripts.mutation table      # killed and survived, in Markdown

The sample: `PER_STRATUM` mutants of each of `STRATA`, places drawn uniformly with `SEED`, then one of
cosmic-ray's operators that apply there. Left out: annotations and f-strings (wording), and ``==`` against
``is``, which are the same for small numbers, interned strings and None. A mutant is killed if a test fails or
runs far too long.

The tests of a mutant are those that execute its line: first those that mirror its file, then the others from
the quickest on, together about `BUDGET` seconds, with ``--again`` `AGAIN`. Each mutant runs in a process
forked from one that has the libraries imported, in a copy of the checkout.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SAMPLE = ROOT / "tests" / "mutants" / "sample.json"
RESULTS = ROOT / "tests" / "mutants" / "results.json"
SEED = 13
PER_STRATUM = 36
STRATA = {
    "heads": "heads/*.py",
    "replay": "replay/*.py",
    "memory": "memory/*.py",
    "regularizers": "regularizers/*.py",
    "selection": "selection/*.py",
    "evidence": "evidence/*.py",
    "td": "td.py",
    "wrapper": "wrapper*.py",
    "guard": "step_guard.py",
    "checkpoint": "checkpoint.py",
}
PARTS = (  # of the tests: those of the strata and those that use them most, in portions of a minute
    ("tests/heads", "tests/test_td.py", "tests/selection", "src/owlrl/heads", "src/owlrl/selection"),
    ("tests/replay", "src/owlrl/replay", "src/owlrl/td.py", "src/owlrl/checkpoint.py"),
    ("tests/memory", "src/owlrl/memory", "tests/test_checkpoint.py", "tests/test_wrapper_state.py"),
    ("tests/regularizers", "src/owlrl/regularizers"),
    ("tests/evidence", "src/owlrl/evidence", "tests/describe", "tests/acting"),
    ("tests/test_wrapper.py", "src/owlrl/wrapper*.py", "tests/adapters/*.py", "tests/test_autosave.py"),
    ("tests/adapters/sb3", "tests/test_step_guard.py", "tests/test_stream.py"),
)
FIRST = 12  # tests that are tried before all the others are collected
BUDGET = 15.0  # seconds of tests per mutant
AGAIN = 60.0  # the same for one that survived those
PATIENCE = 60  # seconds of a busy core more than expected until a mutant counts as endless
NO_CHANGE = ("Eq_Is", "Is_Eq", "NotEq_IsNot", "IsNot_NotEq")
SIGNS = (("-", "before"), ("+", "after"))
Mutant = dict[str, Any]


# ----------------------------------------------------------------------------------------------- the sample


OPERATIONS = ("arith_expr", "term", "expr", "and_expr", "xor_expr", "shift_expr", "power", "factor")


def is_left_out(node: Any, operator: str) -> bool:
    """Whether a place of the syntax tree is an annotation, in an f-string, or a star that is no operation."""
    if "BinaryOperator" in operator and node.parent.type not in OPERATIONS:
        return True
    while node.parent is not None:
        parent = node.parent
        if node.type in ("fstring", "tfpdef") or (parent.type == "annassign" and node is parent.children[1]):
            return True
        if parent.type == "funcdef" and node is parent.annotation:
            return True
        node = parent
    return False


def places(path: Path) -> dict[tuple[int, int], list[tuple[str, int]]]:
    """Where a file can be mutated: (line, column) to operators, each with the number of its occurrence."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    found: dict[tuple[int, int], list[tuple[str, int]]] = defaultdict(list)
    nodes = list(ast_nodes(get_ast(path.read_text())))
    for name in operator_names():
        if name.endswith(NO_CHANGE) or "Variable" in name:
            continue
        operator, occurrence = get_operator(name)(), -1
        for node in nodes:
            for start, _ in operator.mutation_positions(node):
                occurrence += 1
                if not is_left_out(node, name):
                    found[start].append((name, occurrence))
    return found


def sample() -> None:
    """Draw the mutants and write them down; of an earlier sample those stay whose place is still there."""
    rng, mutants = random.Random(SEED), []
    earlier = json.loads(SAMPLE.read_text())["mutants"] if SAMPLE.exists() else []
    for stratum, pattern in STRATA.items():
        paths = sorted((ROOT / "src" / "owlrl").glob(pattern))
        here = [(path, start, ways) for path in paths for start, ways in sorted(places(path).items())]
        mine = [mutant for mutant in earlier if mutant["stratum"] == stratum]
        mine = [mutant for mutant in mine if mutated((ROOT / mutant["path"]).read_text(), mutant) is not None]
        taken = {key_of(mutant) for mutant in mine}
        for path, start, ways in rng.sample(here, len(here)):
            if len(mine) >= min(PER_STRATUM, len(here)):
                break
            chosen = rng.choice(ways)
            if not any(key_of(made(stratum, path, start[0], *way)) in taken for way in ways):
                mine.append(made(stratum, path, start[0], *chosen))
        mutants += sorted(mine, key=lambda mutant: (mutant["path"], mutant["line"]))
    SAMPLE.parent.mkdir(exist_ok=True)
    SAMPLE.write_text(json.dumps({"seed": SEED, "mutants": mutants}, indent=1) + "\n")
    new = {key_of(mutant) for mutant in mutants} - {key_of(mutant) for mutant in earlier}
    print(f"{len(mutants)} mutants in {SAMPLE}, {len(new)} of them new")


def made(stratum: str, path: Path, line: int, operator: str, occurrence: int) -> Mutant:
    """A mutant as it is written down: the lines before and after."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    before = path.read_text()
    after = mutate_code(before, get_operator(operator)(), occurrence)
    compile(after, str(path), "exec")
    old, new = before.splitlines(), after.splitlines()
    same = next(k for k, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
    tail = next(
        k
        for k, (a, b) in enumerate(zip(old[::-1], new[::-1], strict=False))
        if a != b or k >= len(old) - same
    )
    tail = min(tail, len(old) - same, len(new) - same)
    return {
        "stratum": stratum,
        "path": str(path.relative_to(ROOT)),
        "line": line,
        "operator": operator.removeprefix("core/"),
        "first": same + 1,
        "before": old[same : len(old) - tail],
        "after": new[same : len(new) - tail],
    }


def placed(text: str, mutant: Mutant) -> int | None:
    """The line (from 1) at which the mutation begins in the file's text; None if that is not clear."""
    lines, size = text.splitlines(), len(mutant["before"])
    if lines[mutant["first"] - 1 : mutant["first"] - 1 + size] == mutant["before"]:
        return int(mutant["first"])
    found = [k + 1 for k in range(len(lines)) if size and lines[k : k + size] == mutant["before"]]
    return found[0] if len(found) == 1 else None


def mutated(text: str, mutant: Mutant) -> str | None:
    """The file's text with the mutation; None if the line is not what it was when the sample was drawn."""
    lines, first = text.splitlines(), placed(text, mutant)
    if first is None:
        return None
    return "\n".join([*lines[: first - 1], *mutant["after"], *lines[first - 1 + len(mutant["before"]) :], ""])


# ------------------------------------------------------------------------------------------------- the tests


def cover(copy: Path) -> None:
    """Run the tests in parts with coverage per test; goes on where it was; what is found lies in ``copy``."""
    config = copy / ".mutation.coveragerc"
    config.write_text("[run]\nbranch = false\nsource = owlrl\n")
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
    for number, part in enumerate(PARTS):
        times, data = copy / f"times-{number}.xml", copy / f".coverage-{number}"
        if times.exists():
            continue
        paths = [str(path.relative_to(copy)) for name in part for path in sorted(copy.glob(name))]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths, "--cov"]
        command += [f"--cov-config={config}", "--cov-context=test", "--cov-report=", f"--junitxml={times}"]
        command += ["-o", "junit_family=xunit1", "-o", "junit_duration_report=total"]
        here = {**environment, "COVERAGE_FILE": str(data)}
        done = subprocess.run(command, cwd=copy, env=here, capture_output=True, text=True, check=False)
        print(part, done.stdout[-200:], flush=True)
        if done.returncode:
            times.unlink(missing_ok=True)
            raise SystemExit("the tests have to pass without a mutant, too")


def times_of(copy: Path) -> dict[str, float]:
    """Seconds of each test, by file, class and name."""
    found = {}
    for times in copy.glob("times-*.xml"):
        for case in ElementTree.parse(times).iter("testcase"):
            file, owner, name = case.get("file", ""), case.get("classname", ""), case.get("name", "")
            inner = owner.removeprefix(file.removesuffix(".py").replace("/", "."))
            parts = [file, *[part for part in inner.split(".") if part], name]
            found["::".join(parts)] = float(case.get("time", 0.0))
    return found


def covering(copy: Path) -> dict[tuple[str, int], set[str]]:
    """The tests that execute each line."""
    from coverage.numbits import numbits_to_nums

    found: dict[tuple[str, int], set[str]] = defaultdict(set)
    query = (
        "select file.path, context.context, line_bits.numbits from line_bits "
        "join file on file.id = line_bits.file_id join context on context.id = line_bits.context_id"
    )
    for stored in copy.glob(".coverage-*"):
        with contextlib.closing(sqlite3.connect(stored)) as data:
            for path, context, bits in data.execute(query):
                if context:
                    relative = str(Path(path).relative_to(copy))
                    for line in numbits_to_nums(bits):
                        found[relative, line].add(context.rpartition("|")[0])
    return found


def chosen_tests(
    mutant: Mutant, text: str, by_line: Any, seconds: dict[str, float], budget: float = BUDGET
) -> list[str]:
    """The tests to run against a mutant of a file with this text, likely killers first."""
    moved = (placed(text, mutant) or mutant["first"]) - mutant["first"]  # since the sample was drawn
    lines = range(mutant["line"] + moved, max(mutant["line"], mutant["first"]) + moved + 1)
    tests = set().union(*(by_line.get((mutant["path"], line), set()) for line in lines))
    if not tests:  # a line that is executed when the file is imported
        tests = set().union(*(found for (path, _), found in by_line.items() if path == mutant["path"]))
    path = Path(mutant["path"])
    room, name = path.parent.name, path.stem.strip("_")
    stem = f"tests/{'' if room == 'owlrl' else room + '/'}test_{name}"

    def order(test: str) -> tuple[int, float]:
        near = 0 if test.startswith(stem) else 1 if f"/{room}/" in test and room != "owlrl" else 2
        return near, seconds.get(test, 1.0)

    taken, total = [], 0.0
    for test in sorted(tests, key=order):
        total += seconds.get(test, 1.0)
        if total > budget and taken:
            break
        taken.append(test)
    return taken


# --------------------------------------------------------------------------------------------------- the run


def run_mutant(copy: Path, mutant: Mutant, tests: list[str], seconds: dict[str, float]) -> str:
    """What became of a mutant: killed, endless, survived or untested."""
    if not tests:
        return "untested"
    path = copy / mutant["path"]
    text = path.read_text()
    changed = mutated(text, mutant)
    if changed is None:
        return "gone"
    limit = PATIENCE + int(3.0 * sum(seconds.get(test, 1.0) for test in tests))
    for cached in path.parent.glob(f"__pycache__/{path.stem}.*"):
        cached.unlink()
    path.write_text(changed)
    try:
        child = os.fork()
        if child == 0:
            _in_child(copy, tests, limit)
        return _outcome(child, limit)
    finally:
        path.write_text(text)


def _in_child(copy: Path, tests: list[str], limit: int) -> None:
    """Run tests in this forked process and end it: 0 if they all pass."""
    code = 3
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))  # not by the clock: others may be busy, too
        with open(copy / "mutant.log", "w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = str(copy / "src")
        sys.path[:0] = [str(copy / "src"), str(copy)]
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        import pytest

        listed = copy / "chosen.txt"
        listed.write_text("\n".join(tests))
        code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--no-header", f"@{listed}"]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _outcome(child: int, limit: int) -> str:
    """Wait for a child: until it ends, for very long, or until it has used no core for `PATIENCE` seconds."""
    end = time.monotonic() + 20 * limit
    used, last = 0, time.monotonic()
    while time.monotonic() < min(end, last + PATIENCE):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # what its tests started
            code = os.waitstatus_to_exitcode(status)
            if code in (-signal.SIGXCPU, -signal.SIGKILL):
                return "endless"
            if code in (3, 5):
                raise SystemExit(f"pytest ended with {code}, an error of its own; see mutant.log in the copy")
            return "survived" if code == 0 else "killed"
        if (now := _used(child)) != used:
            used, last = now, time.monotonic()
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "endless"


def _used(session: int) -> int:
    """Ticks of a core that a session's processes have used."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields = path.read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) if int(fields[3]) == session else 0
    return total or time.monotonic_ns()  # without /proc nobody knows


@contextlib.contextmanager
def copied_checkout(directory: Path | None) -> Iterator[Path]:
    """A copy of the checkout, kept if a directory is given."""
    made = Path(tempfile.mkdtemp()) if directory is None else directory
    if not (made / "src").exists():
        left_out = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", "_build", made.name)
        shutil.copytree(ROOT, made, ignore=left_out, dirs_exist_ok=True)
    try:
        yield made
    finally:
        if directory is None:
            shutil.rmtree(made)


def key_of(mutant: Mutant) -> str:
    """Tells a mutant from others, wherever its line is."""
    text = json.dumps([mutant[name] for name in ("path", "operator", "before", "after")])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def run(directory: Path | None, *, again: bool, strata: Sequence[str] = ()) -> None:
    """Run tests against every mutant without a result, with ``again`` those that no test failed for, too."""
    mutants = json.loads(SAMPLE.read_text())["mutants"]
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    with copied_checkout(directory) as copy:
        cover(copy)
        by_line, seconds = covering(copy), times_of(copy)
        # not hypothesis: pytest wants to be the one who imports it
        import gymnasium
        import numpy
        import sb3_contrib
        import stable_baselines3
        import torch

        assert all((gymnasium, numpy, sb3_contrib, stable_baselines3))
        assert "owlrl" not in sys.modules
        torch.set_num_threads(1)
        sound: set[str] = set()
        for number, mutant in enumerate(mutants):
            key = key_of(mutant)
            if strata and mutant["stratum"] not in strata:
                continue
            done = ("killed", "endless", *([] if again else ["survived"]))
            if results.get(key, {}).get("outcome") in done:
                continue
            text, budget = (copy / mutant["path"]).read_text(), AGAIN if again else BUDGET
            tests = chosen_tests(mutant, text, by_line, seconds, budget)
            if tests and mutant["stratum"] not in sound:  # the same way, without a mutation
                unchanged = run_mutant(copy, {**mutant, "after": mutant["before"]}, tests, seconds)
                if unchanged != "survived":
                    raise SystemExit(f"without a mutant its tests fail, too: see {copy / 'mutant.log'}")
                sound.add(mutant["stratum"])
            begun = time.monotonic()
            for count in sorted({min(FIRST, len(tests)), len(tests)}):
                outcome = run_mutant(copy, mutant, tests[:count], seconds)
                if outcome != "survived":
                    break
            results[key] = {**results.get(key, {}), "outcome": outcome, "tests": len(tests)}
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            where = f"{mutant['path']}:{mutant['line']}"
            print(
                f"{number + 1}/{len(mutants)} {outcome} {where} {time.monotonic() - begun:.0f} s", flush=True
            )


def table() -> bool:
    """Print what became of the mutants of each stratum, and those that live; whether enough were killed."""
    mutants = json.loads(SAMPLE.read_text())["mutants"]
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    print("| stratum | mutants | killed | of them endless | survived | no test | share killed |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    every: list[str] = []
    for stratum in (*STRATA, "all"):
        found = [
            results.get(key_of(m), {}).get("outcome", "missing") for m in mutants if m["stratum"] == stratum
        ]
        every, found = [*every, *found], found if stratum != "all" else every
        dead = sum(outcome in ("killed", "endless") for outcome in found)
        counts = (len(found), dead, *(found.count(kind) for kind in ("endless", "survived", "untested")))
        print(f"| {stratum} | {' | '.join(map(str, counts))} | {dead / max(1, len(found)):.0%} |")
    print()
    for mutant in mutants:
        found = results.get(key_of(mutant), {"outcome": "missing"})
        if found["outcome"] not in ("killed", "endless"):
            print(f"{found['outcome']} {mutant['path']}:{mutant['line']} {found.get('why', '')}")
            print("\n".join(f"  {sign} {line}" for sign, key in SIGNS for line in mutant[key]))
    return sum(outcome in ("killed", "endless") for outcome in every) >= 0.85 * len(mutants)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m scripts.mutation", description=__doc__)
    parser.add_argument("what", choices=["sample", "run", "table"])
    parser.add_argument(
        "--copy", type=Path, help="work in this copy of the checkout, made if it is not there"
    )
    parser.add_argument("--only", action="append", default=[], help="a stratum")
    parser.add_argument("--again", action="store_true", help="run all that no test failed for again")
    chosen = parser.parse_args(arguments)
    if chosen.what == "sample":
        sample()
    elif chosen.what == "run":
        run(chosen.copy, again=chosen.again, strata=chosen.only)
    return 0 if chosen.what != "table" or table() else 1


if __name__ == "__main__":
    sys.exit(main())
