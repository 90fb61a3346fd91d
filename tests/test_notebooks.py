"""The example notebooks run, at small size; they are their paired scripts, with outputs of the same kinds.

The quickest one is executed in the default run, all others by ``make slow``. Of all of them the default run
looks at the stored outputs, and at what their code imports from owlrl and how it is called.
"""

from __future__ import annotations

import ast
import inspect
import os
from importlib import import_module
from pathlib import Path

import jupytext
import nbclient
import nbformat
import pytest
from jupyter_client import KernelManager

from scripts.notebooks import kinds

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
QUICK = {"02_wrap_your_dqn"}
EXECUTED = [
    pytest.param(path, id=path.stem, marks=[] if path.stem in QUICK else pytest.mark.slow)
    for path in NOTEBOOKS
]


def test_there_are_notebooks():
    assert {path.stem for path in NOTEBOOKS} > QUICK


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_is_its_script(path):
    notebook, script = jupytext.read(path), jupytext.read(path.with_suffix(".py"))
    cells = [[(cell.cell_type, cell.source) for cell in book.cells] for book in (notebook, script)]
    assert cells[0] == cells[1], f"run: jupytext --sync {path.name}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_stored_is_of_one_whole_run(path):
    cells = [cell for cell in jupytext.read(path).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]
    assert any("image/png" in kinds(cell) for cell in cells), f"run: python -m scripts.notebooks {path.stem}"


def misused(code: str) -> list[str]:
    """What is imported from owlrl and is not there, and calls of it with arguments that it does not take."""
    known, wrong = {}, []
    tree = ast.parse("\n".join(line for line in code.splitlines() if not line.startswith("%")))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "owlrl":
            module = import_module(node.module)
            wrong += [f"{node.module}.{each.name}" for each in node.names if not hasattr(module, each.name)]
            known |= {each.asname or each.name: getattr(module, each.name, None) for each in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and callable(called := known.get(getattr(node.func, "id", None))):
            names = {each.arg: None for each in node.keywords if each.arg is not None}
            plain = [each for each in node.args if not isinstance(each, ast.Starred)]
            try:
                inspect.signature(called).bind_partial(*plain, **names)
            except TypeError as error:
                wrong.append(f"{node.func.id}: {error}")
    return wrong


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_used_of_owlrl_is_there(path):
    code = "\n".join(cell.source for cell in jupytext.read(path).cells if cell.cell_type == "code")
    assert "owlrl" in code and not misused(code)


def test_what_is_not_there_is_noticed():
    assert not misused("from owlrl import EWCRegularizer as E\nE(1.0, importance='loss')")
    assert misused("from owlrl import EWCRegularizer as E, Nothing\nE(1.0, nonsense=3)") == [
        "owlrl.Nothing",
        "E: got an unexpected keyword argument 'nonsense'",
    ]


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
@pytest.mark.parametrize("path", EXECUTED)
def test_the_notebook_runs(path, kernel):
    notebook = jupytext.read(path)
    stored = [kinds(cell) for cell in notebook.cells]
    notebook.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))  # of what the last notebook left
    client = nbclient.NotebookClient(notebook, timeout=300, km=kernel)
    try:
        client.execute()  # a cell that raises fails the test
    finally:
        client.kc.stop_channels()
    again = [kinds(cell) for cell in notebook.cells[1:]]
    assert stored == again, f"the outputs are of other cells; run: python -m scripts.notebooks {path.stem}"
