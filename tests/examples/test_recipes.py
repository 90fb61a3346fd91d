"""The recipes of the documentation learn and keep two tasks, where their library is installed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.test_readme import OPTIONAL, ROOT, run

PAGE = ROOT / "docs" / "recipes.md"


@pytest.mark.parametrize("package", OPTIONAL)
def test_the_recipe_keeps_both_tasks(package, tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")  # Tianshou compiles for longer than it takes to run
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    found = run(PAGE, PAGE.read_text(encoding="utf-8"), package)
    owl, tasks = found["owl"], found["tasks"]
    assert min(found["scores"].values()) >= 7.5, "8 is best, 2 is chance"
    assert min(owl.evaluate(env, seed=1).mean_return for env in tasks.values()) >= 6.0, "task unknown"

    replay = owl.replay
    replay.begin_task("plus 1")
    assert len(replay) == 480
    for kept in (replay.sample(64) for _ in range(16)):
        paying = (kept.observation.argmax(1) + 1) % 4
        assert np.array_equal((kept.action == paying).float(), kept.reward), "rows of that task, and no other"
    assert replay.new_rows() is None, "kept rows are not new"
    owl.save(tmp_path / "owl.safetensors")
    state = replay.state_dict()
    replay.begin_task("plus 2")
    replay.load_state_dict(state)
    actions = "act" if package == "tianshou" else "action"
    restored = replay.state_dict()["rows"][actions]
    assert len(restored) == 480 and np.array_equal(np.sort(restored), np.sort(state["rows"][actions]))
