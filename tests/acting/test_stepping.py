"""Steppers: true transitions, whichever way the environment resets."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from owlrl.acting.stepping import Stepper
from tests.acting.test_episodes import Countdown


def check(steps) -> None:
    for k in np.flatnonzero(steps.real):
        before, after = steps.observation[k], steps.next_observation[k]
        assert before[0] == after[0] and after[1] == before[1] + 1, "no transition joins two episodes"


@pytest.mark.parametrize("cut", [False, True])
def test_a_single_environment_is_a_vector_of_one(cut):
    stepper = Stepper(Countdown(cut=cut), seed=0)
    assert stepper.num_envs == 1
    ends = []
    for _ in range(10):
        steps = stepper.step(np.zeros(1, int))
        check(steps)
        assert steps.real.all() and steps.reward.tolist() == [1.0]
        ends.append(bool((steps.truncated if cut else steps.terminated)[0]))
    assert ends == [True, False, True, False, False, True, False, False, False, True]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("cut", [False, True])
def test_vectors_give_true_transitions(mode, cut):
    envs = SyncVectorEnv([lambda s=s: Countdown(s, cut) for s in (1, 3)], autoreset_mode=mode)
    stepper = Stepper(envs, seed=0)
    real, ended = 0, 0
    for _ in range(20):
        steps = stepper.step(np.zeros(2, int))
        check(steps)
        real += int(steps.real.sum())
        ended += int(((steps.terminated | steps.truncated) & steps.real).sum())
    assert ended >= 6 and (real == 40) == (mode is AutoresetMode.SAME_STEP)
    assert real >= 40 - ended
