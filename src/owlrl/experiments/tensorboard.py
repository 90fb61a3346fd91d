"""`TensorBoard`: numbers of a run for TensorBoard, as they come (extra ``tensorboard``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from owlrl.experiments._optional import optional

__all__ = ["TensorBoard"]


class TensorBoard:
    """Writes numbers as scalars; for ``OwlWrapper(watch=...)``, and what ``compare(tensorboard=...)`` uses.

    Args:
        directory: of the run; a run per directory, as TensorBoard has it.
        after: steps from which on an earlier process may have written: what is there counts no more.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from owlrl.experiments import TensorBoard
    >>> directory = tempfile.mkdtemp()
    >>> with TensorBoard(directory) as board:
    ...     board(100, {"memory/rows": 64.0})
    >>> len(list(Path(directory).glob("events.out.*")))
    1
    """

    def __init__(self, directory: str | os.PathLike[str], *, after: int | None = None) -> None:
        module = optional("torch.utils.tensorboard", extra="tensorboard", what="TensorBoard")
        self.directory = Path(directory)
        self._writer = module.SummaryWriter(str(self.directory), purge_step=after)

    def __call__(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write the numbers of one step."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is not written yet."""
        self._writer.close()

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
