"""Every public name is documented, with an example that runs (the doctests run it)."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest

import owlrl

ROOT = Path(__file__).parent.parent
API_PAGE = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md"))


def public_modules() -> list[str]:
    """owlrl and its modules, without those that have a leading underscore anywhere in their name."""
    found = (info.name for info in pkgutil.walk_packages(owlrl.__path__, "owlrl."))
    return ["owlrl", *(name for name in found if not any(p.startswith("_") for p in name.split(".")))]


def documented_modules(page: str) -> set[str]:
    """Modules whose members the API page takes from their docstrings."""
    return set(re.findall(r"^\.\. automodule:: (\S+)\n(?: +:.*\n)* +:members:", page, re.MULTILINE))


def is_protocol(thing: object) -> bool:
    return getattr(thing, "_is_protocol", False)


def docstring_problems(module: ModuleType) -> list[str]:
    """What is missing from the docstrings of the names that ``module`` exports."""
    problems = []
    for name in module.__all__:
        thing = getattr(module, name, None)
        if thing is None:
            problems.append(f"{name} is in __all__ but not there")
            continue
        if not (inspect.isclass(thing) or inspect.isroutine(thing)):
            continue  # a constant or a type alias has no docstring of its own
        text = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
        if not text:
            problems.append(f"{name} has no docstring")
        elif ">>>" not in text and not is_protocol(thing):
            problems.append(f"{name} has no example")
    return problems


def undocumented(module: ModuleType, page: str) -> list[str]:
    """Names that ``module`` exports and ``page`` neither mentions nor takes from a module."""
    covered = documented_modules(page)
    exported_there = {
        name for other in covered for name in getattr(importlib.import_module(other), "__all__", ())
    }
    mentioned = set(re.findall(r"\w+", page))
    return [name for name in module.__all__ if name not in exported_there | mentioned]


@pytest.mark.parametrize("name", public_modules())
def test_module_says_what_it_is_and_what_is_public(name):
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    assert hasattr(module, "__all__"), f"{name} has no __all__"
    assert len(set(module.__all__)) == len(module.__all__)


@pytest.mark.parametrize("name", public_modules())
def test_public_names_have_docstring_and_example(name):
    assert docstring_problems(importlib.import_module(name)) == []


# A module inside a package is where the package keeps its code: what of it is public, the package says.
@pytest.mark.parametrize("name", [name for name in public_modules() if name.count(".") <= 1])
def test_public_names_are_in_the_api_reference(name):
    assert undocumented(importlib.import_module(name), API_PAGE) == []


def test_version_is_that_of_the_project():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f'\nversion = "{owlrl.__version__}"\n' in project
    assert f"\nversion: {owlrl.__version__}\n" in citation
    assert f"## [{owlrl.__version__}]" in changelog


def test_checks_find_what_they_are_for():
    module = ModuleType("strange")
    source = '''
from typing import Protocol
class Bare: ...
class Child(Exception): ...
class Told:
    """Without an example."""
class Shown:
    """With one.

    >>> 1
    1
    """
class Contract(Protocol):
    """Needs no example."""
def bare(): ...
LIMIT = 3
__all__ = ["Bare", "Child", "Contract", "LIMIT", "Shown", "Told", "absent", "bare"]
'''
    exec(compile(source, "strange.py", "exec"), vars(module))
    assert docstring_problems(module) == [
        "Bare has no docstring",
        "Child has no docstring",
        "Told has no example",
        "absent is in __all__ but not there",
        "bare has no docstring",
    ]
    page = "`Bare`, `Child` and bare\n\n.. automodule:: owlrl.errors\n   :members:\n"
    assert undocumented(module, page) == ["Contract", "LIMIT", "Shown", "Told", "absent"]
    assert undocumented(importlib.import_module("owlrl.errors"), page) == []
    assert documented_modules("% .. automodule:: owlrl.td\n%    :members:\n") == set()
