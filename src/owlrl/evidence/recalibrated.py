"""`RecalibratedEvidence`: every head's scale is measured again whenever a task has been learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from owlrl._arguments import Arguments
from owlrl.evidence.base import Evidence, FloatArray, IntArray, check_keys
from owlrl.protocols import Evidence as AnyEvidence
from owlrl.protocols import OffPolicyLearner
from owlrl.types import Transitions

__all__ = ["RecalibratedEvidence"]

FIELDS = ("observation", "action", "reward", "next_observation", "terminated", "discount", "weight")


class RecalibratedEvidence(Evidence):
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

    calibrated = False  # the evidence inside says which heads it knows

    def __init__(self, evidence: AnyEvidence, *, samples: int = 2_000) -> None:
        arguments = Arguments("RecalibratedEvidence")
        self.samples = arguments.integer("samples", samples)
        arguments.check()
        super().__init__()
        self.evidence = evidence

    def fit(self, learner: OffPolicyLearner, head: int, rows: Transitions) -> dict[str, Any]:
        """Rows of ``head``'s task, to be kept in place of earlier ones; all heads are measured on theirs."""
        own = {name: tensor for name in FIELDS if (tensor := getattr(rows, name)) is not None}
        known = self.evidence.state_dict()
        try:
            for other, kept in {**self.fitted, head: own}.items():
                self.evidence.calibrate(learner, other, Transitions(**kept))
        except BaseException:
            self.evidence.load_state_dict(known)
            raise
        return own

    def score(self, learner: OffPolicyLearner, rows: Transitions, heads: IntArray) -> FloatArray:
        """What the evidence inside says."""
        return self.evidence.losses(learner, rows, heads)

    def forget(self, head: int) -> None:
        """Drop the rows of ``head``, and what the evidence inside keeps of it."""
        super().forget(head)
        self.evidence.forget(head)

    def state_dict(self) -> dict[str, Any]:
        """The kept rows, and the state of the evidence inside."""
        return {**super().state_dict(), "evidence": self.evidence.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Continue from what ``state_dict`` gave."""
        check_keys("RecalibratedEvidence.load_state_dict", state_dict, ("heads", "evidence"))
        heads = self._heads_of(state_dict)
        self.evidence.load_state_dict(state_dict["evidence"])
        self.fitted = heads
        self.version += 1

    def __repr__(self) -> str:
        return f"RecalibratedEvidence({self.evidence!r}, samples={self.samples})"
