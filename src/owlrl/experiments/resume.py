"""How far a run has come, in a file: one that is stopped goes on with the task it was stopped in."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

from owlrl.checkpoint import load_state, save_state
from owlrl.errors import OwlValueError
from owlrl.experiments.control import ControlSession
from owlrl.experiments.session import Session

__all__ = ["Resume"]

Row = dict[str, Any]


class Resume:
    """Keeps a session and what training has told so far, task after task; without a path it keeps nothing.

    Args:
        path: of the file; None for none.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from owlrl.experiments import Run, Session
    >>> from owlrl.experiments.resume import Resume
    >>> path, run = Path(tempfile.mkdtemp()) / "run.part", Run("Crossroads-2", policies=("oracle",))
    >>> Resume(path).save(Session(run), {"finished": 1})
    >>> Resume(path).load(Session(run))
    {'finished': 1}
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.path = None if path is None else Path(path)
        self._begun = time.time(), time.process_time()

    def load(self, session: Session | ControlSession) -> dict[str, Any]:
        """Put the session where it was and return what was kept beside it; nothing if there is no file."""
        if self.path is None or not self.path.is_file():
            return {}
        try:
            state = load_state(self.path)
        except OwlValueError as error:
            raise OwlValueError(f"Resume: {error}; remove it to begin anew") from error
        if not isinstance(state, dict) or state.get("run") != session.run.to_json():
            raise OwlValueError(f"Resume: {self.path} is of another run; remove it to begin anew")
        session.load_state_dict(state["session"])
        session.spent = state["spent"]
        torch.set_rng_state(state["session"]["learner"]["rng"]["torch"])
        kept: dict[str, Any] = state["kept"]
        return kept

    def save(self, session: Session | ControlSession, kept: dict[str, Any]) -> None:
        """Write down where the session is, atomically, and ``kept`` beside it."""
        if self.path is None:
            return
        wall, cpu = self._begun
        spent = {
            "seconds": session.spent["seconds"] + time.time() - wall,
            "cpu": session.spent["cpu"] + time.process_time() - cpu,
        }
        state = {"run": session.run.to_json(), "session": session.state_dict(), "spent": spent}
        save_state(self.path, {**state, "kept": kept})
