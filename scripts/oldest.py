"""The lowest versions that pyproject.toml allows, as pip wants them; used by ``make oldest``.

python scripts/oldest.py cli dev > requirements.txt   # of these extras and of the package itself
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import tomllib

PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def lowest(extras: list[str], project: Path = PROJECT) -> list[str]:
    """``name==version`` for each requirement of the package and of ``extras``."""
    declared = tomllib.loads(project.read_text())["project"]
    needed = [*declared["dependencies"]]
    for extra in extras:
        needed += declared["optional-dependencies"][extra]
    pins: dict[str, str] = {}
    for requirement in needed:
        found = re.fullmatch(r"([A-Za-z0-9_.-]+)>=([0-9.]+)", requirement)
        if found is None:
            raise SystemExit(f"pyproject.toml: {requirement!r} names no lowest version; write name>=version")
        name, version = found.groups()
        if pins.setdefault(name, version) != version:
            raise SystemExit(f"pyproject.toml: {name} has two lowest versions, {pins[name]} and {version}")
    return [f"{name}=={version}" for name, version in pins.items()]


if __name__ == "__main__":
    print("\n".join(lowest(sys.argv[1:])))
