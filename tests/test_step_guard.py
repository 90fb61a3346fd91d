"""StepGuard: steps only inside a task and only with finite gradients."""

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import DDPG, SAC, TD3
from torch import nn

from owlrl import MultiHeadQ, OwlWrapper, QLearner
from owlrl.errors import NonFiniteError, OwlStateError
from owlrl.step_guard import StepGuard, all_finite
from tests import own_actor_critic
from tests.adapters.helpers import BOX, KINDS, Guess, any_model, same, weights
from tests.own_dqn import Signs, make_script, train


def make():
    q = MultiHeadQ(nn.Linear(2, 4), 4, 2)
    optimizer = torch.optim.SGD(q.parameters(), lr=0.1)
    return q, optimizer, StepGuard(QLearner(q, None, optimizer))


def backward(q, optimizer, factor=1.0):
    optimizer.zero_grad()
    (q(torch.ones(1, 2)).sum() * factor).backward()


def test_steps_are_counted_inside_a_task_and_refused_outside():
    q, optimizer, guard = make()
    guard.begin("a")
    for _ in range(3):
        backward(q, optimizer)
        optimizer.step()
    assert guard.steps == 3
    guard.end()
    with pytest.raises(OwlStateError, match="outside a task"):
        optimizer.step()
    guard.detach()
    optimizer.step()


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), -float("inf")])
def test_a_step_with_bad_numbers_is_not_made(factor):
    q, optimizer, guard = make()
    guard.begin("a")
    before = q.trunk.weight.clone()
    backward(q, optimizer, factor)
    with pytest.raises(
        NonFiniteError, match=r"task 'a', step 1: the gradient of 'trunk.weight' in network 'q'"
    ):
        optimizer.step()
    assert torch.equal(before, q.trunk.weight)


def test_bad_numbers_that_the_head_does_not_see_are_found_too():
    q, optimizer, guard = make()
    guard.begin("b")
    backward(q, optimizer)
    q.trunk.bias.grad[1] = float("nan")
    before = q.heads[0].weight.clone()
    with pytest.raises(NonFiniteError, match=r"'trunk.bias' in network 'q'"):
        optimizer.step()
    assert torch.equal(before, q.heads[0].weight)


def test_steps_are_refused_while_paused():
    q, optimizer, guard = make()
    guard.begin("a")
    backward(q, optimizer)
    with guard.paused(), pytest.raises(OwlStateError, match="outside a task"):
        optimizer.step()
    optimizer.step()
    assert guard.steps == 1


def test_weights_are_checked_by_name():
    q, _, guard = make()
    guard.begin("a")
    guard.check_weights()
    q.trunk.weight.data[0, 0] = float("inf")
    with pytest.raises(NonFiniteError, match=r"the weights 'trunk.weight' of network 'q'"):
        guard.check_weights()


def test_weights_of_targets_are_checked_too():
    q, target = MultiHeadQ(nn.Linear(2, 4), 4, 2), MultiHeadQ(nn.Linear(2, 4), 4, 2)
    guard = StepGuard(QLearner(q, target, torch.optim.SGD(q.parameters(), lr=0.1)))
    guard.begin("a")
    guard.check_weights()
    target.trunk.bias.data[1] = float("nan")
    with pytest.raises(NonFiniteError, match=r"the weights 'trunk.bias' of the target of 'q' are not finite"):
        guard.check_weights()


def test_weights_that_no_gradient_shows_are_found_while_training():
    q, optimizer, guard = make()
    guard.begin("a")
    q.trunk.weight.data[0, 0] = float("inf")
    for step in range(1, 128):
        q.trunk.bias.grad = torch.ones(4)
        optimizer.step()
        assert guard.steps == step
    message = "task 'a', step 128: the weights 'trunk.weight' of network 'q' are not finite; the step was not"
    with pytest.raises(NonFiniteError, match=message):
        optimizer.step()
    assert guard.steps == 127


@pytest.mark.parametrize("block", ["task", "stream"])
def test_an_error_that_bad_weights_led_to_names_them(block):
    """As a log-variance that is not finite, at which torch's distributions stop."""
    script = own_actor_critic.make_script("sac")
    owl = OwlWrapper(script.learner())
    with pytest.raises(NonFiniteError) as caught, owl.task("a") if block == "task" else owl.stream():
        own_actor_critic.train(script, own_actor_critic.Push(1.0), 120)
        with torch.no_grad():
            script.actor.log_std.bias.fill_(float("nan"))
        torch.distributions.Normal(*script.actor(torch.zeros(1, 2)), validate_args=True)
    assert "the weights 'log_std.bias' of network 'actor' are not finite, and there was a ValueError" in str(
        caught.value
    )
    assert isinstance(caught.value.__cause__, ValueError)
    assert not owl.tasks["a" if block == "task" else "task 0"].visits
    script.actor.log_std.bias.data.zero_()
    with pytest.raises(KeyError), owl.task("b"):  # other errors stay what they are
        raise KeyError("b")


class Spoiled(gymnasium.Wrapper):
    """One number that is not finite, in one step: in its reward or in what is seen then."""

    def __init__(self, env, quantity, value, at=41):
        super().__init__(env)
        self.quantity, self.value, self.left = quantity, value, at

    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        self.left -= 1
        if self.left == 0:
            if self.quantity == "reward":
                reward = self.value
            else:
                observation = np.full_like(observation, self.value)
        return observation, reward, *rest


FAULTS = [("reward", np.inf), ("reward", np.nan), ("next_observation", -np.inf)]


@pytest.mark.parametrize(("quantity", "value"), FAULTS)
@pytest.mark.parametrize("replay", ["deque", "scoped"])
def test_a_number_in_a_script_is_stopped_at_its_step(replay, quantity, value):
    clean, script = make_script(replay=replay), make_script(replay=replay)
    with OwlWrapper(clean.learner()).task("a"):
        train(clean, Signs(), 40)
    owl = OwlWrapper(script.learner())
    # owlrl's own replay refuses the row, a deque takes it and the step is refused: 8 were made before
    message = rf"(TaskScopedReplay.add|^task 'a', step 9): .*{quantity}.*"
    message += r"\(task 'a'\)" if replay == "scoped" else r"of row 40 of task 'a' .*the step was not made"
    with pytest.raises(NonFiniteError, match=message), owl.task("a"):
        train(script, Spoiled(Signs(), quantity, value), 60)
    assert same(clean.q.state_dict(), script.q.state_dict())
    assert owl.tasks["a"].steps == 8


@pytest.mark.parametrize(("quantity", "value"), FAULTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_number_in_a_model_is_stopped_at_its_step(kind, quantity, value):
    def made(spoil):
        env = Guess(BOX) if kind in (SAC, TD3, DDPG) else Guess()
        return any_model(kind, env=Spoiled(env, quantity, value) if spoil else env, train_freq=1)

    clean = made(False)
    with OwlWrapper(clean).task("a"):
        clean.learn(60, callback=lambda local, _: local["self"].num_timesteps <= 40)
    model = made(True)
    owl = OwlWrapper(model)
    message = rf"^task 'a', step \d+: {quantity} is {value} at place 40 of the ReplayBuffer, environment 0"
    with pytest.raises(NonFiniteError, match=message + ".* was not made"), owl.task("a"):
        model.learn(60)
    assert same(weights(clean), weights(model))


def test_an_action_is_stopped_too_and_the_step_can_be_made_when_it_is_put_right():
    model = any_model(DDPG)
    owl = OwlWrapper(model)

    def spoil(local, _):
        if local["self"].num_timesteps == 41:
            local["replay_buffer"].actions[39] = np.nan  # of the newest step that is stored
        return True

    with pytest.raises(NonFiniteError, match="action is nan at place 39"), owl.task("a"):
        model.learn(60, callback=spoil)
    buffer = model.replay_buffer
    with pytest.raises(NonFiniteError, match="action is nan at place 39"), owl.task("a"):
        model.learn(2, reset_num_timesteps=False)
    buffer.actions[39] = 0.0
    with owl.task("a"):
        model.learn(2, reset_num_timesteps=False)
    assert owl.tasks["a"].visits == 1


@pytest.mark.parametrize(
    ("value", "quantity"), [(1000.0, "alpha is not finite"), (-torch.inf, "log_alpha is not finite")]
)
def test_messages_name_the_optimizer_where_there_are_several(value, quantity):
    script = own_actor_critic.make_script("sac")
    owl = OwlWrapper(script.learner())
    with owl.task("a"):
        own_actor_critic.train(script, own_actor_critic.Push(), 80)
    with (
        pytest.raises(NonFiniteError, match=rf": {quantity}.* the step of the '\w+' optimizer was not made"),
        owl.task("a"),
    ):
        script.log_alpha.data.fill_(value)
        own_actor_critic.train(script, own_actor_critic.Push(), 80)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_are_looked_at_whatever_torch_makes_by_default(dtype):
    torch.set_default_dtype(dtype)
    try:
        for made in (torch.float32, torch.float64):
            assert all_finite([torch.ones(2, dtype=made)])
            assert not all_finite([torch.ones(2, dtype=made), torch.full((1,), torch.nan, dtype=made)])
    finally:
        torch.set_default_dtype(torch.float32)
