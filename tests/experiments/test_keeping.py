from __future__ import annotations

import pytest

from owlrl.errors import OwlValueError
from owlrl.experiments import keeping
from owlrl.experiments.keeping import Keeper


def test_states_are_kept_every_so_many_seconds(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(keeping.time, "monotonic", lambda: now[0])
    keeper, asked = Keeper(tmp_path / "x", {"seed": 1}, seconds=10), []
    for now[0] in range(35):
        keeper.tick(lambda: asked.append(now[0]) or {"at": now[0]})
    assert asked == [10, 20, 30] and keeper.saves == 3
    assert Keeper(tmp_path / "x", {"seed": 1}).load() == {"at": 30}
    keeper.remove()
    assert keeper.load() is None
    keeper.remove()


def test_without_a_path_nothing_is_kept():
    keeper = Keeper(None, "run", seconds=0)
    keeper.tick(lambda: pytest.fail("nobody needs a state"))
    keeper.save({})
    keeper.remove()
    assert keeper.load() is None and not keeper.saves


@pytest.mark.parametrize("seconds", [-1, float("nan"), "often"])
def test_bad_seconds_are_named(seconds):
    with pytest.raises(OwlValueError, match="seconds is"):
        Keeper(None, "run", seconds=seconds)


def test_the_file_of_another_version_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(keeping.owlrl, "__version__", "0.0.1")
        Keeper(tmp_path / "x", "run").save({})
    with pytest.raises(OwlValueError, match="x is of another run"):
        Keeper(tmp_path / "x", "run").load()
