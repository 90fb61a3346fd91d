"""`RecalibratedEvidence`: every head's scale is measured again whenever a task has been learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from owlrl.errors import int_problem, raise_problems
from owlrl.evidence._common import FloatArray, check_keys, check_rows, spread
from owlrl.protocols import Evidence, OffPolicyLearner
from owlrl.types import Transitions

__all__ = ["RecalibratedEvidence"]

FIELDS = ("observation", "action", "reward", "next_observation", "terminated", "discount")


class RecalibratedEvidence:
    """Keeps some rows of each task and calibrates all heads on their own rows when one has been learned.

    A head's values drift while later tasks are trained, however well they are guarded: its TD errors on its
    own task grow to several times what they were when it was left. By a scale that was measured then, the
    head looks wrong even where it is right, and selection locks on to the head that was trained last.

    Args:
        evidence: what is calibrated, e.g. `TDErrorEvidence` or `GaussianNLLEvidence`.
        samples: most rows kept per head, spread evenly over those given.

    >>> import torch
    >>> from owlrl import Transitions
    >>> from owlrl.evidence import RecalibratedEvidence, TDErrorEvidence
    >>> class Drifting:  # both heads are wrong by ``error``
    ...     error = 1.0
    ...     def td_errors(self, rows, heads):
    ...         return torch.full((len(heads), len(rows)), self.error)
    >>> x, learner = torch.ones(4, 1), Drifting()
    >>> rows = Transitions(x, x, x[:, 0], x, x[:, 0] > 5, x[:, 0])
    >>> evidence = RecalibratedEvidence(TDErrorEvidence())
    >>> evidence.calibrate(learner, 0, rows)
    >>> learner.error = 3.0  # while another task was learned
    >>> evidence.calibrate(learner, 1, rows)
    >>> evidence.evidence.scales
    {0: 3.0, 1: 3.0}
    """

    def __init__(self, evidence: Evidence, *, samples: int = 2_000) -> None:
        raise_problems("RecalibratedEvidence", filter(None, [int_problem("samples", samples)]))
        self.evidence = evidence
        self.samples = samples
        self._rows: dict[int, Transitions] = {}

    def calibrate(self, learner: OffPolicyLearner, head: int, transitions: Transitions) -> None:
        """Keep rows of ``head``'s task in place of those kept before; measure all heads on theirs."""
        check_rows("RecalibratedEvidence.calibrate", head, transitions)
        rows = replace(spread(transitions, self.samples), weight=None, index=None)
        kept = {**self._rows, int(head): rows}
        known = self.evidence.state_dict()
        try:
            for other, own in kept.items():
                self.evidence.calibrate(learner, other, own)
        except BaseException:
            self.evidence.load_state_dict(known)
            raise
        self._rows = kept

    def losses(self, learner: OffPolicyLearner, transitions: Transitions, heads: np.ndarray) -> FloatArray:
        """What the evidence inside says, (B, len(heads))."""
        return self.evidence.losses(learner, transitions, heads)

    def state_dict(self) -> dict[str, Any]:
        """The kept rows, and the state of the evidence inside."""
        rows = {str(h): {name: getattr(own, name) for name in FIELDS} for h, own in self._rows.items()}
        return {"rows": rows, "evidence": self.evidence.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Continue from what ``state_dict`` gave."""
        check_keys("RecalibratedEvidence.load_state_dict", state_dict, ("rows", "evidence"))
        rows = {int(head): Transitions(**own) for head, own in state_dict["rows"].items()}
        self.evidence.load_state_dict(state_dict["evidence"])
        self._rows = rows

    def __repr__(self) -> str:
        return f"RecalibratedEvidence({self.evidence!r}, samples={self.samples})"
