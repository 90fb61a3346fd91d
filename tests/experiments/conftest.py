from __future__ import annotations

from collections.abc import Iterator

import pytest

from owlrl import RewardEvidence
from owlrl.experiments.policies import CONTROL, EVIDENCE
from owlrl.learners import one_hot_cells


@pytest.fixture(autouse=True, scope="package")
def quick_predictors() -> Iterator[None]:
    """Reward predictors of two corridors of one cell need no thousand updates, nor do tests of a Pendulum."""
    usual = EVIDENCE["reward"], CONTROL["reward"]
    EVIDENCE["reward"] = lambda seed: RewardEvidence(encode=one_hot_cells, hidden=16, updates=60, seed=seed)
    CONTROL["reward"] = lambda seed: RewardEvidence(hidden=16, updates=60, seed=seed)
    yield
    EVIDENCE["reward"], CONTROL["reward"] = usual
