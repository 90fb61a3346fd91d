"""Networks on another device than the memory; `make gpu` runs the marked tests where there is a GPU."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from owlrl import MultiHeadQ, OwlWrapper, QLearner, TaskScopedReplay
from owlrl.checkpoint import load_state
from owlrl.learners import DQN, SAC
from owlrl.replay import PrioritizedSampler, UniformSampler
from owlrl.types import moved
from tests.own_actor_critic import Push
from tests.own_dqn import SIZE, Signs


def make(device: str) -> tuple[MultiHeadQ, torch.optim.Optimizer, TaskScopedReplay, QLearner]:
    torch.manual_seed(0)
    q = MultiHeadQ(nn.Sequential(nn.Linear(SIZE, 32), nn.ReLU()), 32, SIZE).to(device)
    optimizer, replay = (
        torch.optim.Adam(q.parameters(), lr=3e-3),
        TaskScopedReplay.for_env(Signs(), 500, seed=0),
    )
    return q, optimizer, replay, QLearner(q, copy.deepcopy(q), optimizer, replay=replay)


def learn(owl: OwlWrapper, q, optimizer, replay, name: str, shift: int, device: str) -> None:
    rng = np.random.default_rng(shift)
    with owl.task(name):
        for step in range(300):
            sign, action = rng.integers(SIZE), int(rng.integers(SIZE))
            seen = np.eye(SIZE, dtype=np.float32)[sign]
            replay.add(seen, action, float(action == (sign + shift) % SIZE), seen, True, False)
            if step < 32:
                continue
            batch = replay.sample(32).to(device)
            values = q(batch.observation).gather(1, batch.action[:, None])[:, 0]
            loss = (values - batch.reward).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def both_tasks(device: str) -> OwlWrapper:
    q, optimizer, replay, learner = make(device)
    owl = OwlWrapper(learner, seed=0)
    for shift, name in enumerate(("same", "next")):
        learn(owl, q, optimizer, replay, name, shift, device)
    return owl


def test_a_saved_state_knows_no_device(tmp_path):
    both_tasks("cpu").save(tmp_path / "state")

    def tensors(tree):
        if isinstance(tree, torch.Tensor):
            yield tree
        elif isinstance(tree, dict | list):
            for item in tree.values() if isinstance(tree, dict) else tree:
                yield from tensors(item)

    found = list(tensors(load_state(tmp_path / "state")))
    assert found and {tensor.device.type for tensor in found} == {"cpu"}
    loaded = OwlWrapper.load(tmp_path / "state", make("cpu")[3], seed=0)
    assert loaded.evaluate(Signs(1), task="next", seed=0).mean_return == 8.0


class Transfers(TorchFunctionMode):
    """Counts tensors that go from the CPU to another device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and isinstance(args[0], torch.Tensor):
            self.count += args[0].device.type == "cpu" != found.device.type
        return found


@pytest.mark.parametrize("sampler", [UniformSampler(), PrioritizedSampler()])
def test_a_batch_goes_to_another_device_in_one_transfer(sampler):
    replay = TaskScopedReplay.for_env(Signs(), 500, seed=0, sampler=sampler, device="meta")
    seen = np.zeros(SIZE, np.float32)
    for _ in range(40):
        replay.add(seen, 1, 1.0, seen, True, False)
    with Transfers() as transfers:
        batch = replay.sample(32)
    assert transfers.count == 1
    assert {t.device.type for t in vars_of(batch)} == {"meta"}
    assert batch.observation.shape == (32, SIZE) and batch.terminated.dtype == torch.bool


def vars_of(batch):
    names = ("observation", "action", "reward", "next_observation", "terminated", "discount", "weight")
    return [value for name in names if (value := getattr(batch, name)) is not None]


class Waits(TorchFunctionMode):
    """Counts the numbers that are read from tensors, for which a GPU is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += getattr(func, "__name__", "") in ("item", "__bool__", "__float__", "__int__", "tolist")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("make_agent", "numbers"),
    [(lambda: DQN(Signs(), seed=0), 1), (lambda: SAC(Push(), seed=0), 3)],  # losses, and α
)
def test_an_update_waits_for_the_device_once_per_number_that_it_returns(make_agent, numbers):
    agent = make_agent()
    agent.learn(300)
    batch = agent.replay.sample(32)
    with Waits() as waits:
        agent.update(batch)
    assert waits.count == numbers


def test_what_is_moved_together_is_the_same_afterwards(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.randint(0, 9, (3, 5), generator=generator, dtype=torch.uint8),
        torch.rand(7, generator=generator) > 0.5,
        torch.randn(2, 3, generator=generator, dtype=torch.float64).t(),
        torch.zeros(0, 4),
        torch.randint(0, 9, (1,), generator=generator),
        torch.tensor(2.5),
    ]
    # as if the CPU were another device: the bytes are packed, moved and unpacked
    monkeypatch.setattr(torch, "device", lambda name: SimpleNamespace(type="another"))
    for before, after in zip(tensors, moved(tensors, "cpu"), strict=True):
        assert torch.equal(before, after) and before.dtype == after.dtype and before.shape == after.shape


@pytest.fixture
def cuda() -> str:
    if not torch.cuda.is_available():
        pytest.fail("make gpu needs a CUDA device, and torch sees none here")
    return "cuda"


@pytest.mark.gpu
def test_tasks_are_learned_kept_and_found_on_a_gpu(cuda):
    owl = both_tasks(cuda)
    for shift, name in enumerate(("same", "next")):
        assert owl.evaluate(Signs(shift), task=name, seed=0).mean_return == 8.0
        assert owl.evaluate(Signs(shift), true_task=name, seed=0).found.mean() > 0.9
    assert owl.memory["same"].rows(4).observation.device.type == "cpu"


@pytest.mark.gpu
@pytest.mark.parametrize(("of", "to"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_a_state_goes_from_one_device_to_another(cuda, of, to, tmp_path):
    owl = both_tasks(of)
    owl.save(tmp_path / "state")
    q, optimizer, replay, learner = make(to)
    loaded = OwlWrapper.load(tmp_path / "state", learner, seed=0)
    assert loaded.evaluate(Signs(0), task="same", seed=0).mean_return == 8.0
    learn(loaded, q, optimizer, replay, "third", 2, to)
    assert loaded.evaluate(Signs(0), task="same", seed=0).mean_return == 8.0


@pytest.mark.gpu
@pytest.mark.parametrize(
    "make_agent", [lambda d: DQN(Signs(), seed=0, device=d), lambda d: SAC(Push(), seed=0, device=d)]
)
def test_reference_learners_run_on_a_gpu(cuda, make_agent):
    agent = make_agent(cuda)
    owl = OwlWrapper(agent)
    for name in ("a", "b"):
        with owl.task(name, env=agent.env):
            agent.learn(700)
    assert owl.tasks["b"].steps > 0
