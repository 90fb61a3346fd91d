"""Policies by name: how the head is chosen, and from what evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from owlrl import (
    ExpWeightsSelector,
    MaxQSelector,
    ModelEvidence,
    RewardEvidence,
    TDErrorEvidence,
    UniformSelector,
)
from owlrl._arguments import Arguments
from owlrl.errors import OwlValueError
from owlrl.evidence import Evidence, GaussianNLLEvidence
from owlrl.evidence.base import FloatArray, IntArray, check_keys
from owlrl.experiments._optional import imported
from owlrl.gaussian import gaussian_nll
from owlrl.learners import one_hot_cells
from owlrl.protocols import Evidence as AnyEvidence
from owlrl.protocols import HeadSelector, MultiHead, OffPolicyLearner
from owlrl.selection import RestlessSelector
from owlrl.td import taken
from owlrl.types import Transitions

__all__ = ["EvidenceSet", "make_evidence", "parse_policy"]

SMALLEST = 1e-6  # variance where all passes agree
FIELDS = ("observation", "action", "reward", "next_observation", "terminated", "discount", "weight")


class RecalibratedEvidence(Evidence):
    """Keeps some rows of each task and calibrates all heads on their own rows when one has been learned.

    A head's values drift while later tasks are trained, even with a regularizer: with a scale measured at
    the end of its task, the head looks wrong even where it is right, and selection locks on to the head
    that was trained last. At most ``samples`` rows are kept per head, spread evenly over those given.
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
        """The losses of the evidence inside."""
        return self.evidence.losses(learner, rows, heads)

    def forget(self, head: int) -> None:
        """Drop the rows of ``head``, and what the evidence inside keeps of it."""
        super().forget(head)
        self.evidence.forget(head)

    def state_dict(self) -> dict[str, Any]:
        """The kept rows, and the state of the evidence inside."""
        return {**super().state_dict(), "evidence": self.evidence.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Continue from what ``state_dict`` returned."""
        check_keys("RecalibratedEvidence.load_state_dict", state_dict, ("heads", "evidence"))
        heads = self._heads_of(state_dict)
        self.evidence.load_state_dict(state_dict["evidence"])
        self.fitted = heads
        self.version += 1

    def __repr__(self) -> str:
        return f"RecalibratedEvidence({self.evidence!r}, samples={self.samples})"


class DropoutEvidence(Evidence):
    """Scores heads by the likelihood of the TD target under passes with dropout (the paper's MC dropout).

    Only differences between heads count: the loss is twice the NLL above that of the best head, clipped.
    """

    calibrated = False

    def __init__(self, *, passes: int = 10, clip: float = 5.0) -> None:
        super().__init__()
        self.passes = passes
        self.clip = clip

    def fit(self, learner: OffPolicyLearner, head: int, rows: Transitions) -> None:
        """The spread of the passes is the scale; there is nothing to measure."""

    def score(self, learner: OffPolicyLearner, rows: Transitions, heads: np.ndarray) -> Tensor:
        """Twice the NLL, above that of the best head."""
        network = next(iter(learner.networks.values()))
        chosen = torch.as_tensor(heads)
        with torch.no_grad():
            with _mode(network.module, training=False):
                value = self._taken(network, rows, chosen)
            goal = value + learner.td_errors(rows, heads)  # y = Q + δ, (n, B)
            with _mode(network.module, training=True):
                samples = torch.stack([self._taken(network, rows, chosen) for _ in range(self.passes)])
        variance = samples.var(0, unbiased=False).clamp(min=SMALLEST)
        nll = 2 * gaussian_nll(samples.mean(0), variance.log(), goal)
        return (nll - nll.min(0).values).clamp(max=self.clip)

    def _taken(self, network: MultiHead, rows: Transitions, heads: Tensor) -> Tensor:
        return taken(network.all_heads(rows.observation), rows.action)[heads]


@contextmanager
def _mode(module: nn.Module, *, training: bool) -> Iterator[None]:
    before = module.training
    module.train(training)
    try:
        yield
    finally:
        module.train(before)


class EvidenceSet:
    """Calibrates all its parts at once; as evidence itself it is their sum.

    >>> from owlrl.experiments import EvidenceSet, make_evidence
    >>> evidence = make_evidence({"td", "td-and-reward"}, seed=0)
    >>> list(evidence.parts)
    ['td', 'reward']
    >>> type(evidence.part("td")).__name__, list(evidence.part("td-and-reward").parts)
    ('TDErrorEvidence', ['td', 'reward'])
    """

    def __init__(self, parts: Mapping[str, AnyEvidence]) -> None:
        self.parts = dict(parts)

    def part(self, name: str) -> AnyEvidence | None:
        """What a policy named after it uses; "a-and-b" is the sum of two parts, "none" is None."""
        if name == "none":
            return None
        if name in self.parts:
            return self.parts[name]
        names = name.split("-and-")
        if missing := [n for n in names if n not in self.parts]:
            raise OwlValueError(
                f"evidence {', '.join(missing)} was not collected in training, only "
                f"{', '.join(self.parts) or 'none'}; name the policy there, too"
            )
        return EvidenceSet({n: self.parts[n] for n in names})

    def calibrate(self, learner: OffPolicyLearner, head: int, rows: Transitions) -> None:
        """Calibrate every part on rows of the task of ``head``."""
        for part in self.parts.values():
            part.calibrate(learner, head, rows)

    def losses(self, learner: OffPolicyLearner, rows: Transitions, heads: np.ndarray) -> np.ndarray:
        """The sum of the parts' losses, (len(heads), len(rows))."""
        total = np.zeros((len(heads), len(rows)))
        for part in self.parts.values():
            total += part.losses(learner, rows, heads)
        return total

    def forget(self, head: int) -> None:
        """Drop what every part keeps of ``head``."""
        for part in self.parts.values():
            part.forget(head)

    def state_dict(self) -> dict[str, Any]:
        """That of every part."""
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Continue from what ``state_dict`` returned."""
        for name, part in self.parts.items():
            part.load_state_dict(state_dict[name])


CONTROL: dict[str, Callable[[int], AnyEvidence]] = {  # with continuous actions instead, or in addition
    "td": lambda seed: RecalibratedEvidence(TDErrorEvidence()),
    "td-once": lambda seed: TDErrorEvidence(),
    "nll": lambda seed: RecalibratedEvidence(GaussianNLLEvidence()),
    "nll-once": lambda seed: GaussianNLLEvidence(),
    "nll-raw": lambda seed: GaussianNLLEvidence(calibrated=False, clip=1e6),
    "reward": lambda seed: RewardEvidence(updates=2_000, seed=seed),
    "model": lambda seed: ModelEvidence(seed=seed),
}
EVIDENCE: dict[str, Callable[[int], AnyEvidence]] = {
    "td": lambda seed: TDErrorEvidence(),
    "td-raw": lambda seed: TDErrorEvidence(calibrated=False),
    "td-squared": lambda seed: TDErrorEvidence(calibrated=False, power=2),
    "reward": lambda seed: RewardEvidence(encode=one_hot_cells, seed=seed),
    "model": lambda seed: ModelEvidence(seed=seed),
    "nll": lambda seed: DropoutEvidence(),
}


def make_evidence(names: Iterable[str], *, seed: int, control: bool = False) -> EvidenceSet:
    """All evidence that policies called after ``names`` need.

    ``td`` is the calibrated TD error, ``td-raw`` its plain size (what the published code uses),
    ``td-squared`` the paper's G, ``reward`` a reward predictor per task, ``model`` a model of each task,
    ``nll`` the likelihood under dropout; ``td-and-reward`` is the sum of two; ``package.module:name`` is
    your own, made from a seed.

    With continuous actions (``control``) ``td`` and ``nll``, the likelihood under probabilistic critics, are
    calibrated again after each task, ``td-once`` and ``nll-once`` only after their own; ``nll-raw`` is the
    paper's G.

    >>> from owlrl.experiments import make_evidence
    >>> sorted(make_evidence(["none", "td-and-reward"], seed=0).parts)
    ['reward', 'td']
    """
    made = {**EVIDENCE, **CONTROL} if control else EVIDENCE
    wanted = {part for name in names if name != "none" for part in name.split("-and-")}
    own = {name: imported("evidence", name) for name in sorted(wanted - set(made)) if ":" in name}
    if unknown := sorted(wanted - set(made) - set(own)):
        raise OwlValueError(f"evidence is {', '.join(unknown)}; expected some of {', '.join(made)}")
    return EvidenceSet({name: make(seed) for name, make in {**made, **own}.items() if name in wanted})


ORACLE = "oracle"  # the task is given; with one head there is nothing to choose
LEAST_TRIED = "+least-tried"  # at the end of a name: with `LeastTried` around it

SELECTORS: dict[str, Callable[[int], HeadSelector]] = {
    "hedge": lambda seed: ExpWeightsSelector(seed=seed),
    "restless": lambda seed: RestlessSelector(ExpWeightsSelector(seed=seed), seed=seed),
    # Three ways to go on trying heads, against locking on to one that made its own data.
    "hedge-slow": lambda seed: ExpWeightsSelector(eta=0.1, hold=20, seed=seed),
    "hedge-share": lambda seed: ExpWeightsSelector(share=0.05, seed=seed),
    "hedge-floor": lambda seed: ExpWeightsSelector(floor=0.1, seed=seed),
    "released": lambda seed: ExpWeightsSelector(variant="released", seed=seed),
    "paper": lambda seed: ExpWeightsSelector(variant="paper", seed=seed),
    "random": lambda seed: UniformSelector(seed=seed),
    "max-q-once": lambda seed: MaxQSelector(),
    "max-q-every-step": lambda seed: MaxQSelector(every_step=True),
}
# With continuous actions: likelihood, TD error and reward as evidence, each taken in as we and as they do it.
CONTROL_POLICIES = (
    *("hedge+reward", "hedge+model", "hedge+nll", "hedge+td"),
    *("hedge+nll-once", "hedge+td-once"),
    *("hedge-slow+nll-once", "hedge-share+nll-once", "hedge-floor+nll-once"),
    *("released+nll-raw", "paper+nll-raw", "paper+td-squared"),
)
WITHOUT_EVIDENCE = ("random", "max-q-once", "max-q-every-step")


class PolicyName(NamedTuple):
    """The parts of a policy's name."""

    selector: str
    evidence: str
    least_tried: bool = False


def make_selector(name: str, seed: int) -> HeadSelector:
    """A selector by its name, or by ``"package.module:name"`` of a function of a seed."""
    made: HeadSelector = (imported("selector", name) if ":" in name else SELECTORS[name])(seed)
    return made


def parse_policy(name: str, *, control: bool = False) -> PolicyName:
    """Selector and evidence of ``"selector+evidence"``; some selectors need no evidence.

    Either may be ``"package.module:name"`` of a function of a seed; each process imports it when it acts.
    With ``"+least-tried"`` at the end, no action is taken again where another was taken less often.
    With continuous actions (``control``) there is more evidence to choose from.

    >>> from owlrl.experiments import parse_policy
    >>> parse_policy("hedge+td-and-reward")
    PolicyName(selector='hedge', evidence='td-and-reward', least_tried=False)
    >>> parse_policy("random+least-tried")
    PolicyName(selector='random', evidence='none', least_tried=True)
    """
    least_tried = name.endswith(LEAST_TRIED)
    if least_tried and control:
        raise OwlValueError(
            f"policy is {name!r}; expected it without {LEAST_TRIED}: actions are continuous here"
        )
    selector, plus, evidence = name.removesuffix(LEAST_TRIED).partition("+")
    known = (ORACLE, *WITHOUT_EVIDENCE)
    if not plus and (selector in known or ":" in selector):
        return PolicyName(selector, "none", least_tried)
    rest = [n for n in SELECTORS if n not in known]
    there = {**EVIDENCE, **CONTROL} if control else EVIDENCE
    unknown = [part for part in evidence.split("-and-") if part not in there and ":" not in part]
    if unknown or (selector not in rest and ":" not in selector):
        raise OwlValueError(
            f"policy is {name!r}; expected {', '.join(known)}, or one of {', '.join(rest)} with one of "
            f"{', '.join(there)}, e.g. hedge+td; each also with {LEAST_TRIED}"
        )
    return PolicyName(selector, evidence, least_tried)
