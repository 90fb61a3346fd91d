"""Execute the example notebooks at full size and store them with their outputs.

In the root of the checkout: ``python -m scripts.notebooks`` for all or ``python -m scripts.notebooks 01 05``
for some. The scripts ``examples/0*.py`` are the source; the notebooks beside them are written from them.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import jupytext
import nbclient
import nbformat

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SCRIPTS = sorted(EXAMPLES.glob("[0-9][0-9]_*.py"))


def kinds(cell: nbformat.NotebookNode) -> list[str]:
    """What a cell's outputs are, in order: "text" for what is printed, else the richest type of a display.

    Two runs of one notebook agree in this whatever its numbers are. What goes to the error stream (progress
    bars) is left out, and pieces of one stream count once.
    """
    found: list[str] = []
    for output in cell.get("outputs", ()):
        if output.output_type == "stream":
            if output.name == "stdout" and found[-1:] != ["text"]:
                found.append("text")
        else:
            found.append(max(output.data, key=lambda kind: (kind.startswith("image/"), kind)))
    return found


def _joined(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Outputs without the error stream, and pieces of what was printed as one."""
    kept: list[nbformat.NotebookNode] = []
    for output in outputs:
        if output.get("name") == "stderr":
            continue
        if kept and output.output_type == "stream" == kept[-1].output_type:
            kept[-1].text += output.text
        else:
            kept.append(output)
    return kept


def execute(script: Path) -> nbformat.NotebookNode:
    """The notebook of a script with its outputs; a cell that raises raises here."""
    notebook = jupytext.read(script)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"  # the same in every run
    nbclient.NotebookClient(
        notebook, timeout=1_800, resources={"metadata": {"path": str(EXAMPLES)}}
    ).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day
        if cell.cell_type == "code":
            cell.outputs = _joined(cell.outputs)
    notebook.metadata = {
        "jupytext": {"formats": "ipynb,py:percent"},
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def main(wanted: list[str]) -> None:
    """Execute and write those whose names begin with one of ``wanted``, or all."""
    for script in SCRIPTS:
        if not wanted or script.stem.startswith(tuple(wanted)):
            started = time.monotonic()
            nbformat.write(execute(script), script.with_suffix(".ipynb"))
            print(f"{script.stem}: {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":  # python -m scripts.notebooks
    main(sys.argv[1:])
