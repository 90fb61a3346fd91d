"""The example notebooks run, at small size; they are their paired scripts, with outputs of the same kinds."""

from __future__ import annotations

import os
from pathlib import Path

import jupytext
import nbclient
import nbformat
import pytest
from jupyter_client import KernelManager

from scripts.notebooks import kinds

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_is_its_script(path):
    notebook, script = jupytext.read(path), jupytext.read(path.with_suffix(".py"))
    cells = [[(cell.cell_type, cell.source) for cell in book.cells] for book in (notebook, script)]
    assert cells[0] == cells[1], f"run: jupytext --sync {path.name}"


@pytest.fixture(scope="module")
def kernel():
    """One for all notebooks, which begins where Jupyter runs them: they may import a script beside them."""
    small = {
        "OWLRL_EXAMPLE_FRAMES": "800",
        "OWLRL_EXAMPLE_STEPS": "120",  # of learners that update at every step
        "OMP_NUM_THREADS": "1",  # the tests run side by side already
    }
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env={**os.environ, **small}, cwd=str(EXAMPLES))
    yield manager
    manager.shutdown_kernel(now=True)
    manager.cleanup_resources()


@pytest.mark.filterwarnings("ignore")  # of the kernel's own process and its sockets, not of owlrl
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(path, kernel):
    notebook = jupytext.read(path)
    stored = [kinds(cell) for cell in notebook.cells]
    assert any("image/png" in of_cell for of_cell in stored), f"run: python -m scripts.notebooks {path.stem}"
    notebook.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))  # of what the last notebook left
    client = nbclient.NotebookClient(notebook, timeout=300, km=kernel)
    try:
        client.execute()  # a cell that raises fails the test
    finally:
        client.kc.stop_channels()
    again = [kinds(cell) for cell in notebook.cells[1:]]
    assert stored == again, f"the outputs are of other cells; run: python -m scripts.notebooks {path.stem}"
