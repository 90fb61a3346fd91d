from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from owlrl.acting import run_episodes
from owlrl.envs import TabulatedEnv, TabulatedVectorEnv
from owlrl.errors import OwlValueError
from owlrl.experiments import Recording, Run, Session, frame_strip, record_episode, write_gif
from owlrl.experiments.frames import _chosen, _picture
from owlrl.experiments.plots import COLOURS
from tests.experiments.helpers import tiny
from tests.experiments.test_plots import STRANGE, TWELVE, png, trace


@pytest.fixture(scope="module")
def session():
    made = Session(tiny(policies=("oracle", "hedge+td", "random")))
    for task in made.tasks:
        made.train(task, made.env(task), 256)
    return made


def recording(heads=("a", "b"), steps=5, **more):
    frames = np.random.default_rng(0).integers(255, size=(steps + 1, 24, 24, 3), dtype=np.uint8)
    return Recording({**trace(list(heads), steps), **more}, np.zeros(steps, int), frames)


@pytest.mark.parametrize("policy", ["oracle", "hedge+td", "random"])
def test_the_real_episode_is_the_tabulated_one(session, policy):
    found = record_episode(session, "crossroads-1", policy=policy, tile_size=8)
    acting = session.policy_of(policy, ["crossroads-1"])
    done = run_episodes(acting, TabulatedVectorEnv(session.tasks["crossroads-1"], 1), episodes=1, seed=0)
    assert found.trace["arms"] == [int(step.arm[0]) for step in acting.trace]
    assert np.allclose(found.trace["probabilities"], [step.probabilities[0] for step in acting.trace])
    assert np.allclose(found.trace["losses"], [step.losses[0] for step in acting.trace])
    assert found.trace["success"] == done.success[0]
    assert found.trace["heads"] == list(session.heads)
    env = TabulatedEnv(session.tasks["crossroads-1"])
    env.reset()
    ends = [env.step(action)[2:4] for action in found.actions]
    assert [terminated or truncated for terminated, truncated in ends].index(True) == len(ends) - 1


def test_frames_are_of_the_level_and_of_each_step(session):
    found = record_episode(session, "crossroads-0", policy="random", tile_size=8)
    steps = len(found.actions)
    assert found.frames.shape == (steps + 1, 3 * 8, 5 * 8, 3)
    moved = [not np.array_equal(a, b) for a, b in zip(found.frames[:-1], found.frames[1:], strict=True)]
    assert any(moved)
    assert np.array_equal(
        found.frames, record_episode(session, "crossroads-0", policy="random", tile_size=8).frames
    )


def test_an_episode_can_be_cut(session):
    found = record_episode(session, "crossroads-0", policy="oracle", tile_size=8, max_steps=2)
    assert len(found.actions) == 2 and found.trace["success"] is False


def test_large_drawings_get_smaller():
    class Large:
        def render(self):
            return np.arange(900 * 500 * 3).reshape(900, 500, 3) % 251

    small = _picture(Large())
    assert small.shape == (300, 167, 3) and np.array_equal(small, Large().render()[::3, ::3])


def test_one_head_is_named_so():
    made = Session(tiny(method="experience-replay"))
    assert record_episode(made, "crossroads-0", policy="oracle").trace["heads"] == ["one head"]


def test_a_pole_has_nothing_to_solve():
    made = Session(Run("owlrl/Pendulum-v0:90,-90", policies=("oracle", "random"), num_envs=4))
    for task in made.tasks:
        made.train(task, made.env(task), 8)
    found = record_episode(made, "pendulum-90", policy="random", max_steps=3)
    assert found.frames.shape == (4, 250, 250, 3) and found.actions.shape == (3, 1)
    assert found.trace["success"] is None and found.end == "end"
    assert [axes.get_title() for axes in frame_strip(found).axes][3] == "end"


def test_bad_requests_name_everything(session):
    with pytest.raises(
        OwlValueError, match=r"2 problems(.|\n)*tile_size is 0(.|\n)*task is 'x'; expected one of cross"
    ):
        record_episode(session, "x", policy="oracle", tile_size=0)
    with pytest.raises(OwlValueError, match=r"got 5 arms, 5 actions and frames of shape \(3, 4, 4, 3\)"):
        Recording(trace(["a"], 5), np.zeros(5, int), np.zeros((3, 4, 4, 3), np.uint8))
    with pytest.raises(OwlValueError, match="most is 1; expected an int >= 2"):
        frame_strip(recording(), most=1)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(2, 20))
def test_chosen_frames(arms, most):
    found = _chosen(np.array(arms), most).tolist()
    assert found == sorted(set(found))
    assert found[0] == 0 and found[-1] == len(arms)
    assert len(found) == min(most, len(arms) + 1)
    changes = {k for k in range(1, len(arms)) if arms[k] != arms[k - 1]}
    if len(changes) <= most - 2:
        assert changes <= set(found)


def test_borders_have_the_colour_of_the_head_that_acts():
    found = recording(steps=3, arms=[0, 1, 1], success=True)
    *frames, bar = frame_strip(found).axes
    assert [axes.get_title() for axes in frames] == ["0: a", "1: b", "2: b", "end: solved"]
    edges = [axes.spines["left"].get_edgecolor() for axes in frames]
    assert edges[1] == edges[2] and len(set(edges)) == 3
    assert [patch.get_width() for patch in bar.patches] == [1, 2]


@pytest.mark.parametrize(("heads", "steps"), [(["only"], 1), (STRANGE, 3), (TWELVE, 324)])
def test_strips_can_be_drawn(heads, steps):
    assert png(frame_strip(recording(heads, steps))).startswith(b"\x89PNG")


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("RGB")).astype(int)


def test_gif_shows_every_frame_in_the_colour_of_its_head(tmp_path):
    found = recording(steps=4, arms=[0, 1, 0, 0], probabilities=[[0.25, 0.75]] * 4)
    path = tmp_path / "new" / "x.gif"
    write_gif(found, path)
    with Image.open(path) as gif:
        assert gif.n_frames == 5 and gif.info["loop"] == 0
        for k, head in enumerate([0, 1, 0, 0]):
            gif.seek(k)
            shown = pixels(gif)
            wanted = [int(COLOURS[head][i : i + 2], 16) for i in (1, 3, 5)]
            assert np.abs(shown[1, 1] - wanted).max() < 12
            bar = np.abs(shown[-2] - [int(COLOURS[0][i : i + 2], 16) for i in (1, 3, 5)]).max(-1) < 12
            assert bar.mean() == pytest.approx(0.25, abs=0.02)
        assert gif.info["duration"] < 300
        gif.seek(4)
        assert gif.info["duration"] == 2_000
    assert [p.name for p in path.parent.iterdir()] == ["x.gif"]


def test_gifs_of_long_episodes_stay_short():
    file = io.BytesIO()
    write_gif(recording(STRANGE, 324), file)
    with Image.open(file) as gif:
        assert gif.n_frames == 325
        assert 325 * gif.info["duration"] <= 22_000
