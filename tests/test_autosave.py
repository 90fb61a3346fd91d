"""Saving by itself: when, which files, and what happens if it fails or is killed."""

from __future__ import annotations

import os

import gymnasium
import pytest
from stable_baselines3 import SAC as SB3SAC

from owlrl import OwlWrapper, autosave
from owlrl.errors import OwlError
from owlrl.learners import DQN
from tests.adapters.helpers import any_model, dqn
from tests.own_dqn import Signs, make_script, train


class Clock:
    """Stands for the module `time`."""

    now = 0.0

    def monotonic(self):
        return self.now


class Total:
    total = 0


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(autosave, "time", made)
    return made


def make(path, write=None, **options):
    """An autosave of a number that grows with every file."""
    written = []

    def save(where):
        written.append(len(written))
        (write or (lambda path, text: path.write_text(text)))(where, str(written[-1]))

    return autosave.Autosave(save, lambda tick: None, Total(), path, **options)


def files(path):
    return {each.name: each.read_text() for each in path.parent.iterdir()}


def test_saved_when_the_time_has_come(tmp_path, clock):
    saver = make(tmp_path / "state.txt", seconds=10)
    for clock.now in (0, 9.9, 10, 15, 19.9, 20, 20.5):
        saver.tick()
    assert saver.saves == 2
    assert files(saver.path) == {"state.txt": "1"}


def test_saved_after_so_many_steps_or_seconds(tmp_path, clock):
    saver = make(tmp_path / "state.txt", seconds=10, steps=5)
    saved_at = []
    for saver._counter.total in range(12):
        saver.tick()
        saved_at.append(saver.saves)
    assert saved_at == [0] * 5 + [1] * 5 + [2] * 2
    clock.now = 10
    saver.tick()
    assert saver.saves == 3
    alone = make(tmp_path / "state.txt", seconds=None, steps=5)
    clock.now = 1_000
    alone.tick()
    assert alone.saves == 0


@pytest.mark.parametrize(
    ("keep", "found"),
    [
        (1, {"state.txt": "4"}),
        (2, {"state.txt": "4", "state.1.txt": "3"}),
        (4, {"state.txt": "4", "state.1.txt": "3", "state.2.txt": "2", "state.3.txt": "1"}),
    ],
)
@pytest.mark.parametrize("links", [True, False])
def test_the_last_files_are_kept(keep, found, links, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("no hard links here")

    if not links:
        monkeypatch.setattr(os, "link", refuse)

    def replace(path, text):  # as `save_state` does
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").replace(path)

    saver = make(tmp_path / "state.txt", replace, keep=keep)
    for _ in range(5):
        assert saver.now()
    assert files(saver.path) == found


def test_a_failing_save_is_warned_of_and_changes_no_file(tmp_path, clock):
    def write(path, text):
        if text in "23":
            raise OSError(28, "No space left on device")
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").replace(path)

    saver = make(tmp_path / "state.txt", write, keep=2, seconds=10)
    saver.now(), saver.now()
    kept = files(saver.path)
    for clock.now in (10, 20):
        with pytest.warns(UserWarning, match="No space left on device.*training continues"):
            saver.tick()
        assert files(saver.path) == kept == {"state.txt": "1", "state.1.txt": "0"}
    clock.now = 29  # a failed one is not tried again at once
    saver.tick()
    assert (saver.saves, saver.failures) == (2, 2)
    clock.now = 30
    saver.tick()
    assert files(saver.path) == {"state.txt": "4", "state.1.txt": "1"}


def test_what_a_kill_left_is_cleaned_up(tmp_path):
    saver = make(tmp_path / "state.txt", keep=2)
    (tmp_path / ".state.txt.previous").write_text("left")
    saver.now()
    assert files(saver.path) == {"state.txt": "0"}


def test_the_end_of_the_block_is_saved_and_an_exception_is_not(tmp_path):
    with make(tmp_path / "a" / "state.txt") as saver:
        pass
    assert saver.saves == 1
    saver.stop()
    saver.tick()
    assert saver.saves == 1
    with pytest.raises(KeyboardInterrupt), make(tmp_path / "b" / "state.txt") as saver:
        raise KeyboardInterrupt
    assert saver.saves == 0 and not (tmp_path / "b").exists()


def test_bad_arguments_are_named_together(tmp_path):
    with pytest.raises(OwlError, match=r"(?s)seconds is -1.*keep is 0.*path is an int") as error:
        make(3, seconds=-1, keep=0)
    assert "steps" not in str(error.value)
    with pytest.raises(OwlError, match="seconds and steps are None"):
        make(tmp_path / "state.txt", seconds=None)
    owl = OwlWrapper(make_script().learner())
    with pytest.raises(OwlError, match=r"OwlWrapper\.autosave: steps is 0"):
        owl.autosave(tmp_path / "x", steps=0)


def test_a_model_is_saved_before_its_rollouts_and_not_afterwards(tmp_path):
    """When nothing is half done: all updates of the rollout before are made, its rows are stored."""
    for model, made in ((dqn(), "q"), (any_model(SB3SAC, train_freq=1), "critic")):
        owl, seen = OwlWrapper(model), []
        path = tmp_path / f"{made}.safetensors"
        with owl.autosave(path, seconds=1e-9) as saver:
            saver._save = lambda path, owl=owl, model=model, seen=seen: seen.append(
                (len(owl.replay), model._n_updates, owl._guard.total)
            )
            with owl.task("a"):
                model.learn(30)
        assert len(seen) > 10
        freq = int(model.train_freq.frequency)
        assert [rows for rows, _, _ in seen[:-1]] == list(range(0, 30, freq))
        assert all(updates == steps for _, updates, steps in seen)
        before = len(seen)
        with owl.task("a"):
            model.learn(10)
        assert len(seen) == before


def test_an_agent_is_saved_after_its_frames(tmp_path):
    agent = DQN(gymnasium.make("CartPole-v1"), seed=0)
    owl, path = OwlWrapper(agent), tmp_path / "state.safetensors"
    with owl.task("a"), owl.autosave(path, seconds=1e-9) as saver:
        agent.learn(7)
    assert saver.saves == 8
    with owl.task("a"):
        agent.learn(3)
    assert saver.saves == 8 and not agent._at_frame_end
    again = OwlWrapper.load(path, DQN(gymnasium.make("CartPole-v1"), seed=0))
    assert len(again.replay) == 7 and again.tasks["a"].visits == 0


def test_an_own_script_is_saved_at_its_ticks_or_at_the_end(tmp_path):
    script, path = make_script(), tmp_path / "state.safetensors"
    owl = OwlWrapper(script.learner())
    with owl.autosave(path, steps=20, seconds=None) as saver, owl.task("a"):
        train(script, Signs(), 60, extra=lambda: saver.tick() or 0.0)
        assert saver.saves == 1  # 28 updates
    assert saver.saves == 2
    again = OwlWrapper.load(path, make_script().learner())
    assert again.tasks["a"].visits == 1
