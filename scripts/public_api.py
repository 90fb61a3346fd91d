"""Public names and signatures of owlrl, one per line; a test compares them with tests/public_api.txt.

python scripts/public_api.py            print them
python scripts/public_api.py --write    write the file, when a change of the public API is meant
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from pathlib import Path

import owlrl

SNAPSHOT = Path(__file__).parent.parent / "tests" / "public_api.txt"


def public_packages() -> list[str]:
    """owlrl, its modules and its packages, without those with a leading underscore; none below them."""
    found = (info.name for info in pkgutil.iter_modules(owlrl.__path__, "owlrl."))
    return ["owlrl", *(name for name in found if "._" not in name), "owlrl.adapters.sb3"]


def signature(thing: object) -> str:
    """The signature as a user sees it, without addresses and module paths in annotations."""
    try:
        text = str(inspect.signature(thing))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def lines_of(name: str) -> list[str]:
    """One line per public name of a module, and one per public method of a class."""
    module = importlib.import_module(name)
    found = []
    for public in sorted(module.__all__):
        thing = getattr(module, public)
        if getattr(thing, "__module__", name).partition(".")[0] != "owlrl":
            found.append(f"{name}.{public}")
            continue
        found.append(f"{name}.{public}{signature(thing) if callable(thing) else ''}")
        if inspect.isclass(thing) and thing.__module__.startswith(name):
            members = (m for m in sorted(vars(thing)) if not m.startswith("_"))
            for member in members:
                value = inspect.getattr_static(thing, member)
                inner = getattr(value, "__func__", value)
                shown = signature(inner) if inspect.isfunction(inner) else ""
                found.append(f"{name}.{public}.{member}{shown}")
    return found


def snapshot() -> str:
    """All lines."""
    return "\n".join(line for name in public_packages() for line in lines_of(name)) + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        SNAPSHOT.write_text(snapshot(), encoding="utf-8")
    else:
        print(snapshot(), end="")
