"""Install the built wheel in an empty environment and run the README's first example with it.

Run by ``make wheel``, from the root of the checkout, after ``python -m build``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parent.parent
IMPORT_CHECK = """
import sys, pathlib, importlib.metadata, owlrl
where = pathlib.Path(owlrl.__file__).resolve()
assert where.is_relative_to(pathlib.Path(sys.prefix).resolve()), f"imported from {where}, not from the wheel"
missing = [name for name in owlrl.__all__ if not hasattr(owlrl, name)]
assert not missing, f"in owlrl.__all__ but not there: {missing}"
print("owlrl", importlib.metadata.version("owlrl"), "with", len(owlrl.__all__), "public names")
"""


def first_example(readme: str) -> str:
    """The first block of Python in the text of a README."""
    blocks = [
        token.content
        for token in MarkdownIt().parse(readme)
        if token.type == "fence" and token.info.strip() == "python"
    ]
    if not blocks:
        sys.exit("README.md has no ```python block")
    return blocks[0]


def only_wheel(dist: Path) -> Path:
    """The one wheel in ``dist``, which holds the package, its type marker, its licence and no more."""
    wheels = sorted(dist.glob("*.whl"))
    if len(wheels) != 1:
        sys.exit(f"dist has {len(wheels)} wheels; expected 1")
    names = zipfile.ZipFile(wheels[0]).namelist()
    missing = [
        wanted
        for wanted in ("owlrl/__init__.py", "owlrl/py.typed", ".dist-info/licenses/LICENSE")
        if not any(name.endswith(wanted) for name in names)
    ]
    strangers = [name for name in names if not name.startswith(("owlrl/", "owlrl-", "owlrl_command.py"))]
    if missing or strangers:
        sys.exit(f"{wheels[0].name}: missing {missing}, unexpected {strangers}")
    return wheels[0]


def main() -> None:
    """Install, import, run."""
    wheel = only_wheel(ROOT / "dist")
    example = first_example((ROOT / "README.md").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "venv"
        # Made by the environment we run in, so that it works where Python has no ensurepip:
        # pip is that one's, the packages are the new one's.
        venv.create(environment, with_pip=False)
        python = str(environment / "bin" / "python")
        pip = [sys.executable, "-m", "pip", "--python", python]
        subprocess.run([*pip, "install", "--quiet", str(wheel)], check=True, cwd=ROOT)
        subprocess.run([*pip, "check"], check=True, cwd=ROOT)
        # -I keeps the checkout and PYTHONPATH out of the way; -W error as in the tests.
        for code in (IMPORT_CHECK, example):
            subprocess.run([python, "-I", "-W", "error", "-c", code], check=True, cwd=folder)
    print(f"{wheel.name}: installed, imported, README's first example ran")


if __name__ == "__main__":
    main()
