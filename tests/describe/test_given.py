"""What the wrapper is given: check_learner and check_bound name all that is wrong at once."""

from types import MappingProxyType

import gymnasium
import pytest
import torch
from torch import nn

from owlrl import MultiHeadQ, OwlWrapper, QLearner, check_learner
from owlrl.describe.given import check_bound
from owlrl.errors import OwlTypeError
from tests.own_dqn import make_script


class Half:
    """Has some of what a learner needs."""

    networks = targets = optimizers = per_task = MappingProxyType({})
    replay, gamma = None, 0.9


def test_missing_members_are_all_named():
    with pytest.raises(OwlTypeError) as caught:
        check_learner(Half())
    text = str(caught.value)
    assert (
        "a Half lacks act, add_head, at_border, bind, consolidation, finish_task, inputs, prepare, "
        "pretrained, problems, record, reset_head, scaling, seed, set_env, td_errors, trial, unbind, values;"
        in text
    )
    assert "QLearner(" in text


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (nn.Sequential(nn.Linear(4, 2)), "a Sequential is a network, and a learner has an optimizer"),
        (gymnasium.make("CartPole-v1"), "a TimeLimit is no learner; describe a DQN with QLearner("),
        (3, "an int is no learner"),
    ],
)
def test_what_was_never_meant_to_be_a_learner_is_not_told_all_members(item, said):
    with pytest.raises(OwlTypeError) as caught:
        check_learner(item)
    assert said in str(caught.value)
    assert "add_head" not in str(caught.value)


class Odd(QLearner):
    networks = MappingProxyType({"q": nn.Linear(1, 1)})
    targets = MappingProxyType({"other": 3})
    optimizers = MappingProxyType({})
    per_task = MappingProxyType({"epsilon": 1})


def test_a_bound_learner_s_parts_are_all_looked_at():
    odd = object.__new__(Odd)
    odd.replay = "buffer"
    text = "\n".join(check_bound(odd))
    for part in (
        "networks['q'] is a Linear; expected a MultiHead",
        "targets['other'] is an int; expected a MultiHead",
        "per_task['epsilon'] is an int; expected a Stateful",
        "targets has ['other'], which networks does not have",
        "optimizers has []; expected the names of networks, ['q']",
        "replay is a str; expected a TaskReplay, e.g. TaskScopedReplay(...)",
    ):
        assert part in text, part


class Empty(QLearner):
    networks = targets = optimizers = per_task = MappingProxyType({})


def test_no_networks_at_all():
    empty = object.__new__(Empty)
    empty.replay = None
    assert check_bound(empty) == ["networks is empty; expected at least one network"]


def test_pointers_and_head_counts_must_agree():
    q, target = (MultiHeadQ(nn.Linear(2, 4), 4, 2) for _ in range(2))
    learner = QLearner(q, target, torch.optim.SGD(q.parameters(), lr=0.1))
    target.add_head()
    found = "\n".join(check_bound(learner))
    assert "several pointers" in found and "[1, 2] heads" in found
    assert check_bound(make_script().learner()) == []


class Agent:
    """Somebody's agent that can describe itself."""

    def __init__(self):
        self.script = make_script()

    def describe(self):
        return self.script.learner()


def test_an_agent_may_describe_itself():
    agent = Agent()
    check_learner(agent)
    owl = OwlWrapper(agent)
    assert isinstance(owl.learner, QLearner) and owl.learner.q is agent.script.q
    with pytest.raises(OwlTypeError, match=r"got the class Agent; expected an object"):
        check_learner(Agent)


def test_a_jax_model_is_named():
    foreign = type("DQN", (), {"__module__": "flax.training"})()
    with pytest.raises(OwlTypeError, match=r"this is a DQN of flax, a JAX library.*with torch modules, or"):
        check_learner(foreign)
    pytest.importorskip("stable_baselines3")
    foreign = type("DQN", (), {"__module__": "sbx.dqn.dqn"})()
    with pytest.raises(OwlTypeError, match=r"a DQN of sbx, a JAX library.* DDPG of stable_baselines3"):
        check_learner(foreign)
