"""The selectors of the paper's comparison."""

from __future__ import annotations

import numpy as np
import pytest

from owlrl.errors import OwlStateError, OwlValueError
from owlrl.protocols import Stateful
from owlrl.selection import MaxQSelector, OracleSelector, UniformSelector


def test_oracle_one_head_for_all():
    selector = OracleSelector(2)
    selector.reset(4)
    selector.update([9.0, 9.0, 0.0, 9.0])
    assert selector.select() == 2
    assert selector.probabilities.tolist() == [0, 0, 1, 0]
    selector.reset(3, num_episodes=2)
    assert selector.select().tolist() == [2, 2]


def test_oracle_a_head_for_each_episode():
    heads = np.array([1, 0, 2])
    selector = OracleSelector(heads)
    assert selector.head is heads
    selector.reset(3, num_episodes=3)
    assert selector.select().tolist() == [1, 0, 2]
    np.testing.assert_array_equal(selector.probabilities, np.eye(3)[[1, 0, 2]])
    selector.select()[:] = 0
    selector.reset(3, num_episodes=3, mask=np.array([True, False, False]))
    assert selector.select().tolist() == [1, 0, 2]


@pytest.mark.parametrize("head", [-1, True, 1.0, "a", None, [], [[0]], [0, -1], np.array([0.0])])
def test_oracle_bad_head(head):
    with pytest.raises(OwlValueError, match=r"OracleSelector: head is .*; expected an int >= 0"):
        OracleSelector(head)


@pytest.mark.parametrize(
    ("head", "num_heads", "episodes", "said"),
    [
        (3, 3, None, "head is 3; expected 0 to 2"),
        ([0, 5], 3, 2, r"head is \[0, 5\]; expected 0 to 2"),
        ([0, 1], 3, 3, "num_episodes is 3; expected 2"),
        ([0, 1], 3, None, "num_episodes is None; expected 2"),
        ([0, 1, 5], 3, 2, "2 problems"),
    ],
)
def test_oracle_bad_reset(head, num_heads, episodes, said):
    with pytest.raises(OwlValueError, match=said):
        OracleSelector(head).reset(num_heads, num_episodes=episodes)


def test_uniform_is_uniform_whatever_the_losses_say():
    selector = UniformSelector(seed=0)
    selector.reset(4, num_episodes=40_000)
    selector.update(np.tile([0.0, 1.0, 2.0, 1e300], (40_000, 1)))
    np.testing.assert_array_equal(selector.probabilities, 0.25)
    np.testing.assert_allclose(np.bincount(selector.select()) / 40_000, 0.25, atol=0.01)


def test_uniform_hold_and_seed():
    def heads(**options):
        selector = UniformSelector(**options)
        selector.reset(50)
        return np.array([selector.select() for _ in range(12)])

    assert (heads(seed=1) == heads(seed=1)).all()
    assert (heads(seed=1) != heads(seed=2)).any()
    held = heads(seed=1, hold=4).reshape(3, 4)
    assert (held == held[:, :1]).all()
    assert len(set(held[:, 0])) == 3
    assert isinstance(UniformSelector(), Stateful)


def test_uniform_bad_arguments():
    with pytest.raises(OwlValueError, match="2 problems"):
        UniformSelector(hold=0, seed=-3)


def test_max_q_once_keeps_its_first_choice():
    selector = MaxQSelector()
    assert selector.needs_values is True
    selector.reset(3)
    np.testing.assert_allclose(selector.probabilities, 1 / 3)  # nothing is known yet
    selector.observe_values([0.0, 5.0, 1.0])
    assert selector.select() == 1
    selector.observe_values([9.0, 5.0, 1.0])
    assert selector.select() == 1
    assert selector.probabilities.tolist() == [0, 1, 0]
    selector.reset(3)
    selector.observe_values([9.0, 5.0, 1.0])
    assert selector.select() == 0


def test_max_q_every_step_follows_the_values():
    selector = MaxQSelector(every_step=True)
    selector.reset(3)
    for values, head in (
        ([0.0, 5.0, 1.0], 1),
        ([9.0, 5.0, 1.0], 0),
        ([-3.0, -5.0, -1.0], 2),
        ([1.0, 1.0, 0.0], 0),
    ):
        selector.observe_values(values)
        assert selector.select() == head
        selector.update([1.0, 0.0, 1.0])


def test_max_q_once_takes_the_last_values_before_the_choice():
    selector = MaxQSelector()
    selector.reset(2)
    selector.observe_values([1.0, 0.0])
    selector.observe_values([0.0, 1.0])
    assert selector.select() == 1


def test_max_q_partial_reset():
    selector = MaxQSelector()
    selector.reset(2, num_episodes=2)
    selector.observe_values([[0.0, 1.0], [0.0, 1.0]])
    assert selector.select().tolist() == [1, 1]
    selector.reset(2, num_episodes=2, mask=np.array([True, False]))
    np.testing.assert_array_equal(selector.probabilities, [[0.5, 0.5], [0.0, 1.0]])
    with pytest.raises(OwlStateError, match="call observe_values"):
        selector.select()
    selector.observe_values([[1.0, 0.0], [1.0, 0.0]])
    assert selector.select().tolist() == [0, 1]


def test_max_q_needs_values():
    selector = MaxQSelector()
    selector.reset(2)
    with pytest.raises(OwlStateError, match="no values were seen since reset"):
        selector.select()


def test_max_q_bad_argument():
    with pytest.raises(OwlValueError, match="every_step is 1; expected True or False"):
        MaxQSelector(every_step=1)


def test_repr_shows_the_hyper_parameters():
    selectors = [OracleSelector(2), UniformSelector(hold=3, seed=1), MaxQSelector(every_step=True)]
    assert [repr(s) for s in selectors] == [
        "OracleSelector(2)",
        "UniformSelector(hold=3)",
        "MaxQSelector(every_step=True)",
    ]
