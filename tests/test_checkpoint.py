"""Checkpoints: exact round trips, atomic writes, and no code from files."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from owlrl.checkpoint import get_rng_state, load_state, save_state, set_rng_state
from owlrl.errors import OwlTypeError, OwlValueError

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
trees = st.recursive(
    scalars,
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), children, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=40)
@given(tree=trees)
def test_plain_trees_come_back_equal(tree, tmp_path_factory):
    path = tmp_path_factory.mktemp("trees") / "state.safetensors"
    save_state(path, tree)
    assert load_state(path) == tree


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.bfloat16]
)
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_tensors_come_back_bit_for_bit(tmp_path, dtype, shape):
    tensor = (torch.rand(shape) * 9).to(dtype)
    save_state(tmp_path / "s", {"t": tensor, "twice": [tensor, tensor]})
    back = load_state(tmp_path / "s")
    assert back["t"].dtype == dtype and back["t"].shape == shape and torch.equal(back["t"], tensor)
    assert torch.equal(back["twice"][1], tensor)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8, np.bool_, np.uint32])
def test_arrays_come_back_as_arrays(tmp_path, dtype):
    array = (np.random.default_rng(0).random((2, 3)) * 9).astype(dtype)
    save_state(tmp_path / "s", {"a": array.T, "scalar": array[0, 0], "zero": np.zeros((), dtype)})
    back = load_state(tmp_path / "s")
    assert isinstance(back["a"], np.ndarray) and back["a"].dtype == dtype
    assert np.array_equal(back["a"], array.T) and back["scalar"] == array[0, 0] and back["zero"].shape == ()


def test_names_with_dots_do_not_meet(tmp_path):
    save_state(tmp_path / "s", {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}})
    back = load_state(tmp_path / "s")
    assert back["a.b"].item() == 0.0 and back["a"]["b"].item() == 1.0


def test_a_generator_s_state_round_trips(tmp_path):
    generator = np.random.default_rng(3)
    generator.random(5)
    save_state(tmp_path / "s", generator.bit_generator.state)
    expected = generator.random(4)
    other = np.random.default_rng()
    other.bit_generator.state = load_state(tmp_path / "s")
    assert np.array_equal(other.random(4), expected)


def test_global_generators_round_trip(tmp_path):
    save_state(tmp_path / "s", get_rng_state())
    expected = (torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random())
    set_rng_state(load_state(tmp_path / "s"))
    assert (torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [({"a": {1, 2}}, "state.a is a set"), ({(1, 2): 3}, "has the key"), (object(), "object")],
)
def test_what_cannot_be_saved_is_named_and_nothing_written(tmp_path, value, message):
    with pytest.raises(OwlTypeError, match=message):
        save_state(tmp_path / "s", value)
    assert not list(tmp_path.iterdir())


def test_files_of_others_are_refused(tmp_path):
    (tmp_path / "text").write_text("hello")
    with pytest.raises(OwlValueError, match="not a readable checkpoint"):
        load_state(tmp_path / "text")
    from safetensors.torch import save_file

    save_file({"a": torch.ones(1)}, tmp_path / "other")
    with pytest.raises(OwlValueError, match="has format None"):
        load_state(tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        load_state(tmp_path / "nothing")


def test_the_header_is_json_that_others_can_read(tmp_path):
    save_state(tmp_path / "s", {"task": "left"})
    from safetensors import safe_open

    with safe_open(str(tmp_path / "s"), framework="pt") as file:
        assert "left" in json.dumps(json.loads(file.metadata()["state"]))


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    save_state(tmp_path / "s", {"version": 1})

    def full(_):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save_state(tmp_path / "s", {"version": 2})
    monkeypatch.undo()
    assert load_state(tmp_path / "s") == {"version": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["s"]


def test_the_file_has_the_mode_of_any_new_file(tmp_path):
    save_state(tmp_path / "s", {})
    (tmp_path / "plain").write_text("")
    assert (tmp_path / "s").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_killed_while_saving_the_file_stays_readable(tmp_path):
    script = textwrap.dedent("""
        import sys, torch
        from owlrl.checkpoint import save_state
        torch.set_num_threads(1)
        weights, k = torch.zeros(3_000_000), 0
        while True:
            save_state(sys.argv[1], {"k": k, "weights": weights})
            k += 1
    """)
    path = tmp_path / "s"
    for attempt in range(3):
        process = subprocess.Popen([sys.executable, "-c", script, str(path)])
        while not path.exists():
            time.sleep(0.05)
        time.sleep(0.1 + 0.037 * attempt)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert load_state(path)["weights"].shape == (3_000_000,)
