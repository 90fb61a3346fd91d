"""Policies by name: how the head is chosen, and from what evidence."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from owlrl import ExpWeightsSelector, MaxQSelector, UniformSelector
from owlrl.errors import OwlValueError
from owlrl.experiments._optional import imported
from owlrl.experiments.evidence import CONTROL, EVIDENCE
from owlrl.experiments.recipes import Recipe
from owlrl.protocols import HeadSelector
from owlrl.selection import RestlessSelector

__all__ = [
    "LEAST_TRIED",
    "ORACLE",
    "SELECTORS",
    "PolicyName",
    "default_policies",
    "make_selector",
    "parse_policy",
]

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
    """The parts of a policy's name.

    >>> from owlrl.experiments.policies import PolicyName
    >>> PolicyName("hedge", "td").selector
    'hedge'
    """

    selector: str
    evidence: str
    least_tried: bool = False


def make_selector(name: str, seed: int) -> HeadSelector:
    """A selector by its name, or by ``"package.module:name"`` of a function of a seed.

    >>> from owlrl.experiments.policies import make_selector
    >>> make_selector("owlrl.experiments.methods:default_selector", 0).needs_values
    False
    """
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


def default_policies(method: Recipe, *, control: bool = False) -> tuple[str, ...]:
    """What a method is evaluated with: all of the paper's comparisons and ours; ``control``: of SAC.

    >>> from owlrl.experiments import METHODS
    >>> from owlrl.experiments.policies import default_policies
    >>> default_policies(METHODS["experience-replay"])
    ('oracle',)
    """
    if not method.heads:
        return (ORACLE,)
    if control:
        return (ORACLE, *CONTROL_POLICIES, "random")
    ours = ("restless+model", "hedge+model", "hedge+reward", "hedge+td")
    theirs = ("released+td-raw", "paper+td-squared")
    dropout = ("hedge+nll",) if method.dropout else ()
    return (ORACLE, *ours, *theirs, *dropout, *WITHOUT_EVIDENCE)
