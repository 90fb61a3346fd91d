"""The example notebooks run, at small size, and are in step with their paired scripts."""

from __future__ import annotations

from pathlib import Path

import jupytext
import nbclient
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_is_its_script(path):
    notebook, script = jupytext.read(path), jupytext.read(path.with_suffix(".py"))
    cells = [[(cell.cell_type, cell.source) for cell in book.cells] for book in (notebook, script)]
    assert cells[0] == cells[1], f"run: jupytext --sync {path.name}"
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear the outputs"


@pytest.mark.filterwarnings("ignore")  # of the kernel's own process and its sockets, not of owlrl
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(path, monkeypatch):
    monkeypatch.setenv("OWLRL_EXAMPLE_FRAMES", "1200")
    monkeypatch.setenv("OWLRL_EXAMPLE_STEPS", "250")  # of learners that update at every step
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the tests run side by side already
    # where Jupyter runs it: a notebook may import a script beside it
    beside = {"metadata": {"path": str(EXAMPLES)}}
    # a cell that raises fails the test
    nbclient.NotebookClient(
        jupytext.read(path), timeout=300, kernel_name="python3", resources=beside
    ).execute()
