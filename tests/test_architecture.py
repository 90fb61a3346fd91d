"""The shape of the source: which part may import which, and what no part may do."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "owlrl"

# Each group imports from itself and from the groups above it. A name stands for
# the module or the package of that name with all that is in it.
GROUPS: tuple[frozenset[str], ...] = (
    frozenset({"_arguments", "errors", "types"}),
    frozenset({"protocols"}),
    frozenset({"checkpoint", "fisher", "gaussian", "heads", "memory", "replay", "selection", "td"}),
    frozenset({"evidence", "regularizers"}),
    frozenset({"changes"}),
    frozenset({"acting", "autosave", "describe", "step_guard", "stream", "wrapper", "wrapper_state"}),
    frozenset({"owlrl"}),  # the package's own __init__: the core and nothing after it
    frozenset({"adapters", "envs", "learners"}),
    frozenset({"experiments"}),
    frozenset({"__main__", "cli"}),
)
RANK = {name: rank for rank, group in enumerate(GROUPS) for name in group}
CORE_RANK = RANK["owlrl"]
CORE_LIBRARIES = frozenset({"numpy", "torch", "typing_extensions"})
RUN_CODE_FROM_FILES = frozenset({"cloudpickle", "dill", "marshal", "pickle", "shelve"})
MAX_LINES = 600

Problems = Iterator[str]


def module_name(path: Path, root: Path) -> str:
    parts = ("owlrl", *path.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part(module: str) -> str:
    """The name in `GROUPS` that ``module`` falls under: owlrl.heads.linear → heads."""
    names = module.split(".")
    return names[1] if len(names) > 1 else names[0]


@cache
def read_tree(root: Path) -> dict[str, ast.Module]:
    """Every module by its dotted name; a syntax newer than Python 3.10 is an error here."""
    return {
        module_name(path, root): ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))
        for path in sorted(root.rglob("*.py"))
    }


def packages(root: Path) -> set[str]:
    return {module_name(path, root) for path in root.rglob("__init__.py")}


def imported(name: str, tree: ast.Module, *, is_package: bool) -> Iterator[str]:
    """Dotted names that ``tree`` imports, wherever in the file; ``from a import b`` gives a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                ancestors = name.split(".") + ([""] if is_package else [])
                base = ".".join(filter(None, [*ancestors[: -node.level], base]))
            yield from (f"{base}.{alias.name}" for alias in node.names)


def edges(root: Path) -> dict[str, set[str]]:
    """Which of our modules each of our modules imports."""
    trees, folders = read_tree(root), packages(root)
    graph: dict[str, set[str]] = {}
    for name, tree in trees.items():
        graph[name] = set()
        for target in imported(name, tree, is_package=name in folders):
            if target.split(".")[0] != "owlrl":
                continue
            module = target if target in trees else target.rpartition(".")[0]
            graph[name].add(module)
        graph[name].discard(name)
    return graph


def arrow_problems(root: Path) -> Problems:
    for name, targets in edges(root).items():
        if part(name) not in RANK:
            yield f"{name} is in no group of tests/test_architecture.py"
            continue
        for target in sorted(targets):
            if RANK.get(part(target), len(GROUPS)) > RANK[part(name)]:
                yield f"{name} imports {target}, which is to its right"


def cycle_problems(root: Path) -> Problems:
    try:
        graphlib.TopologicalSorter(edges(root)).prepare()
    except graphlib.CycleError as error:
        yield " → ".join(error.args[1])


def library_problems(root: Path) -> Problems:
    folders = packages(root)
    for name, tree in read_tree(root).items():
        if RANK.get(part(name), len(GROUPS)) > CORE_RANK:
            continue
        allowed = CORE_LIBRARIES | sys.stdlib_module_names | {"owlrl"}
        for target in imported(name, tree, is_package=name in folders):
            if target.split(".")[0] not in allowed:
                yield f"{name} imports {target}; the core has only {', '.join(sorted(CORE_LIBRARIES))}"


def danger_problems(root: Path) -> Problems:
    """Whatever may run code that comes out of a file, and forwarding by ``__getattr__``."""
    folders = packages(root)
    for name, tree in read_tree(root).items():
        for target in imported(name, tree, is_package=name in folders):
            if target.split(".")[0] in RUN_CODE_FROM_FILES or target == "torch.load":
                yield f"{name} imports {target}"
        for node in ast.walk(tree):
            where = f"{name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.FunctionDef) and node.name in {"__getattr__", "__getattribute__"}:
                yield f"{where} defines {node.name}"
            elif isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in {"eval", "exec", "compile", "__import__", "joblib.load", "torch.load"}:
                    yield f"{where} calls {called}"
                if any(keyword.arg == "allow_pickle" for keyword in node.keywords):
                    yield f"{where} passes allow_pickle"


def length_problems(root: Path) -> Problems:
    for path in sorted(root.rglob("*.py")):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_LINES:
            yield f"{path.relative_to(root)} has {lines} lines; at most {MAX_LINES}"


CHECKS = [arrow_problems, cycle_problems, library_problems, danger_problems, length_problems]


@pytest.mark.parametrize("check", CHECKS)
def test_source_has_no_problem(check):
    assert read_tree(SRC), f"no source found in {SRC}"
    assert not list(check(SRC))


@pytest.mark.parametrize(
    ("check", "files"),
    [
        (arrow_problems, {"td.py": "from owlrl.wrapper import OwlWrapper"}),
        (arrow_problems, {"td.py": "def f():\n    import owlrl.wrapper"}),
        (arrow_problems, {"td.py": "from owlrl import OwlWrapper"}),
        (arrow_problems, {"td.py": "from . import wrapper"}),
        (arrow_problems, {"heads/linear.py": "from ..wrapper import OwlWrapper"}),
        (arrow_problems, {"heads/__init__.py": "from ..regularizers import ewc"}),
        (arrow_problems, {"__init__.py": "from owlrl.learners import DQN"}),
        (arrow_problems, {"brand_new.py": ""}),
        (cycle_problems, {"td.py": "import owlrl.fisher", "fisher.py": "from owlrl.td import taken"}),
        (
            cycle_problems,
            {"heads/__init__.py": "from .a import A", "heads/a.py": "from owlrl.heads import A"},
        ),
        (library_problems, {"wrapper.py": "import gymnasium as gym"}),
        (library_problems, {"wrapper.py": "def f():\n    from matplotlib import pyplot"}),
        (danger_problems, {"checkpoint.py": "import pickle"}),
        (danger_problems, {"checkpoint.py": "from torch import load"}),
        (danger_problems, {"checkpoint.py": "import torch\ntorch.load('x')"}),
        (danger_problems, {"checkpoint.py": "import numpy as np\nnp.load('x', allow_pickle=True)"}),
        (danger_problems, {"checkpoint.py": "eval('1')"}),
        (danger_problems, {"wrapper.py": "class W:\n    def __getattr__(self, name): ..."}),
        (length_problems, {"td.py": "\n" * (MAX_LINES + 1)}),
    ],
)
def test_check_finds_what_it_is_for(check, files, tmp_path):
    clean = {
        "__init__.py": "from owlrl.wrapper import W",
        "wrapper.py": "import torch\nfrom owlrl.td import f",
    }
    for path, source in {**clean, "td.py": "import math", "heads/__init__.py": "", **files}.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(source, encoding="utf-8")
    assert len(list(check(tmp_path))) == 1


def test_checks_accept_what_is_allowed(tmp_path):
    files = {
        "__init__.py": "from owlrl.wrapper import W",
        "wrapper.py": "import torch\nfrom owlrl.heads import A\nmodel.eval()\nre.compile('x')",
        "heads/__init__.py": "from owlrl.heads.a import A",
        "heads/a.py": "from owlrl.td import taken\nfrom ..errors import OwlError",
        "td.py": "from __future__ import annotations",
        "errors.py": "\n" * MAX_LINES,
        "envs/grid.py": "import gymnasium",
        "experiments/run.py": "from owlrl import W\nimport owlrl.envs.grid",
    }
    for path, source in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(source, encoding="utf-8")
    assert [problem for check in CHECKS for problem in check(tmp_path)] == []


IMPORT_PROBE = """
import logging, os, random, sys, warnings
import numpy as np, torch

def state():
    return [
        random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist(), dict(os.environ),
        torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(), np.geterr(), np.get_printoptions(),
        list(warnings.filters), list(logging.root.handlers), logging.root.level, list(sys.path),
    ]

before, loaded_before = state(), set(sys.modules)
import owlrl
changed = [i for i, (old, new) in enumerate(zip(before, state())) if old != new]
assert not changed, f"importing owlrl changed the global state: {changed}"
heavy = {"gymnasium", "matplotlib", "minigrid", "pygame", "sb3_contrib", "stable_baselines3", "tqdm", "tyro"}
loaded = sorted(heavy & (set(sys.modules) - loaded_before))
assert not loaded, f"importing owlrl imported {loaded}"
assert "owlrl.envs" not in sys.modules

try:
    owlrl.OwlWrapper(3)
except TypeError:
    assert "stable_baselines3" not in sys.modules, "it is not imported before it is there"

import gymnasium
ours = lambda: {name for name in gymnasium.registry if name.startswith("owlrl/")}
assert not ours(), "importing owlrl registers nothing"
gymnasium.make("owlrl.envs:owlrl/DoorKey-v0", level=4)
assert ours() == {
    "owlrl/SimpleCrossing-v0", "owlrl/DoorKey-v0", "owlrl/Crossroads-v0", "owlrl/Pendulum-v0",
    "owlrl/Reach-v0", "owlrl/FlippedCartPole-v0", "owlrl/WeakCartPole-v0"}
"""


def test_importing_owlrl_changes_nothing_and_loads_and_registers_nothing_before_it_is_asked_for():
    done = subprocess.run([sys.executable, "-W", "error", "-c", IMPORT_PROBE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_page_that_says_where_things_are_is_right():
    page = (SRC.parent.parent / "docs" / "inside.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .+ \| `(\S+\.py)` \| (.+) \|$", page, re.MULTILINE)
    assert len(rows) >= 10
    for file, names in rows:
        source = (SRC / file).read_text(encoding="utf-8")
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"\b{name}\b", source), (file, name)
