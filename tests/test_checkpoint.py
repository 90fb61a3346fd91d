"""Checkpoints: exact round trips, atomic writes, and no code from files."""

import errno
import hashlib
import json
import multiprocessing
import os
import random
import resource
import stat
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from owlrl import checkpoint
from owlrl.checkpoint import get_rng_state, load_state, save_state, set_rng_state, write_atomically
from owlrl.errors import OwlError, OwlTypeError, OwlValueError
from owlrl.wrapper_state import same_state
from scripts.faults.files import DAMAGES, sample_state

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
trees = st.recursive(
    scalars,
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), children, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=25)
@given(tree=trees)
def test_plain_trees_come_back_equal(tree, tmp_path_factory):
    path = tmp_path_factory.mktemp("trees") / "state.safetensors"
    save_state(path, tree)
    assert load_state(path) == tree


@pytest.mark.parametrize("dtype", list(checkpoint.TORCH_TYPES.values()))
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (3, 2)])
def test_tensors_come_back_bit_for_bit(tmp_path, dtype, shape):
    tensor = (torch.rand(shape) * 9).to(dtype)
    save_state(tmp_path / "s", {"t": tensor, "twice": [tensor, tensor]})
    back = load_state(tmp_path / "s")
    assert back["t"].dtype == dtype and back["t"].shape == shape
    assert same_state(back, {"t": tensor, "twice": [tensor, tensor]})
    assert same_state(list(load_file(tmp_path / "s").values()), [tensor] * 3)  # others can read them, too


@pytest.mark.parametrize("dtype", [*checkpoint.NUMPY_TYPES.values(), ">f4", ">i8"])
def test_arrays_come_back_as_arrays(tmp_path, dtype):
    array = (np.random.default_rng(0).random((2, 3)) * 9).astype(dtype)
    save_state(tmp_path / "s", {"a": array.T, "scalar": array[0, 0], "zero": np.zeros((), dtype)})
    back = load_state(tmp_path / "s")
    assert isinstance(back["a"], np.ndarray) and back["a"].dtype == np.dtype(dtype).newbyteorder("=")
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
    [
        ({"a": {1, 2}}, "state.a is a set"),
        ({(1, 2): 3}, "has the key"),
        ({True: 3}, "has the key True"),
        (object(), "object"),
        ([np.array(["a"])], "state.0 is an array of <U1; expected a dense one"),
        ([np.array([None])], "an array of object"),
        ([torch.zeros(2, dtype=torch.complex128)], "a tensor of torch.complex128"),
        ([torch.zeros(2, device="meta")], "a tensor on meta"),
        ([torch.eye(2).to_sparse()], "torch.sparse_coo"),
        ([np.longdouble(1.0)], "state.0 is a longdouble"),
    ],
)
def test_what_cannot_be_saved_is_named_and_nothing_written(tmp_path, value, message):
    with pytest.raises(OwlTypeError, match=message):
        save_state(tmp_path / "s", value)
    assert not list(tmp_path.iterdir())


def test_what_holds_itself_or_is_too_large_is_named(tmp_path, monkeypatch):
    circle = []
    circle.append(circle)
    with pytest.raises(OwlValueError, match="does it contain itself"):
        save_state(tmp_path / "s", circle)
    with pytest.raises(OwlValueError, match=r"state\.n is an int of 5001 bits"):
        save_state(tmp_path / "s", {"n": 2**5000})
    monkeypatch.setattr(checkpoint, "MAX_HEADER", 1_000)
    with pytest.raises(OwlValueError, match="keep long lists of numbers as arrays"):
        save_state(tmp_path / "s", list(range(1_000)))
    assert not list(tmp_path.iterdir())


def test_unusual_leaves_round_trip(tmp_path):
    deepest = 7
    for _ in range(checkpoint.MAX_DEPTH - 1):
        deepest = [deepest]
    long, lone = "n" * 300_000, '\ud800 \u00e9 \U0001f989 " \\ \0'
    tree = {
        "floats": [float("nan"), float("inf"), -float("inf"), -0.0, 5e-324],
        long: torch.ones(1),
        lone: {lone: np.zeros(2), "": torch.zeros(())},
        -3: {0: "a", "0": "b", 2**100: None},
        "deep": deepest,
        "empty": [{}, [], ""],
        "view": torch.arange(12).reshape(3, 4).T[1:, ::2],
        "reversed": np.arange(5)[::-1],
        "events": [{"step": 3, "from": None, "to": "left", "confidence": 0.5}],
    }
    save_state(tmp_path / "s", {**tree, np.int64(5): np.float32(0.1)})
    back = load_state(tmp_path / "s")
    assert back.pop(5) == float(np.float32(0.1)) and same_state(back, tree)
    assert (tmp_path / "s").stat().st_size < 700_000  # a long name is not repeated
    with safe_open(str(tmp_path / "s"), framework="pt") as file:
        assert file.metadata()["format"] == checkpoint.FORMAT


@pytest.mark.parametrize("pieces", [1, 100])
def test_arrays_larger_than_a_piece_round_trip(tmp_path, monkeypatch, pieces):
    monkeypatch.setattr(checkpoint, "CHUNK", 64 * pieces)
    tree = [
        np.arange(6_000).reshape(2, 30, 100).transpose(2, 0, 1),
        torch.randn(7, 1_000),
        np.ones((3, 1, 7)),
    ]
    save_state(tmp_path / "s", tree)
    assert same_state(load_state(tmp_path / "s"), tree)


# ------------------------------------------------------------------------------- whole or refused


def test_files_of_others_are_refused(tmp_path):
    path = tmp_path / "other"
    with pytest.raises(FileNotFoundError):
        load_state(path)
    for content, message in [
        (b"", "it is empty"),
        (b"hello", "it begins with b'hello'"),
        (b"PK\x03\x04 a zip file, for example", "it begins with b'PK"),
        (b"\x00" * 100, "it begins with"),
        ((10**18).to_bytes(8, "little") + b"{" * 100, "it begins with"),
        ((1_000).to_bytes(8, "little") + b"{" * 100, "it has 108 bytes, its header alone 1008"),
        ((4).to_bytes(8, "little") + b"{}  ", "format None"),
        ((4).to_bytes(8, "little") + b"{[] ", "not JSON"),
        ((10**6).to_bytes(8, "little") + b'{"a":' + b"[" * (10**6 - 5), "not JSON"),
    ]:
        path.write_bytes(content)
        with pytest.raises(OwlValueError, match=message) as caught:
            load_state(path)
        assert "is not a readable checkpoint" in str(caught.value) and str(path) in str(caught.value)
    save_file({"a": torch.ones(1)}, path)
    with pytest.raises(OwlValueError, match="a safetensors file of format None"):
        load_state(path)
    for version, message in [
        ("1", r"made by owlrl 0\.1.*train again"),
        ("3", "load it with the newer owlrl"),
    ]:
        save_file({"a": torch.ones(1)}, path, metadata={"state": "1", "format": f"owlrl-state-{version}"})
        with pytest.raises(OwlValueError, match=message):
            load_state(path)
    with pytest.raises(OwlValueError, match="is not a file"):
        load_state(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OwlValueError, match="is not a file"):
        load_state(tmp_path / "pipe")


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_damage_is_refused(tmp_path, damage):
    rng, path = random.Random(damage.__name__), tmp_path / "s"
    save_state(path, sample_state())
    data = path.read_bytes()
    for _ in range(30):
        content = damage(data, rng)
        path.write_bytes(content)
        if content != data:
            with pytest.raises(OwlError, match="load_state"):
                load_state(path)


def test_every_bit_counts(tmp_path):
    path = tmp_path / "s"
    save_state(path, {"a": torch.ones(1), "n": 1})
    data = path.read_bytes()
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with pytest.raises(OwlValueError):
            load_state(path)
    path.write_bytes(data)
    assert load_state(path) == {"a": torch.ones(1), "n": 1}


def forge(path, state, arrays, data=b"", **metadata):
    """A file whose digests are right and whose header somebody made."""
    start = {"format": checkpoint.FORMAT, "digest": "0" * 64, "data_digest": hashlib.sha256(data).hexdigest()}
    header = {"__metadata__": {**start, "state": state, **metadata}, **arrays}
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.replace(b"0" * 64, checkpoint._header_digest(text), 1)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def entry(dtype="U8", shape=(4,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_a_forged_file_is_taken_only_in_the_form_that_is_written(tmp_path):
    path, four = tmp_path / "s", b"\0\1\2\3"
    forge(path, '{"tensor":"a"}', {"a": entry()}, four)
    assert load_state(path).tolist() == [0, 1, 2, 3]
    one = '{"tensor":"a"}'
    for state, arrays in [
        (one, {}),
        (one, {"b": entry()}),
        ("null", {"a": entry()}),
        ('{"list":[{"tensor":"a"},{"tensor":"a"}]}', {"a": entry()}),
        (one, {"a": entry(shape=[8], offsets=[0, 8])}),
        (one, {"a": entry(shape=[2**45], offsets=[0, 2**45])}),
        (one, {"a": entry(shape=[-4], offsets=[0, -4])}),
        (one, {"a": entry(shape=[-2, -2])}),
        (one, {"a": entry(shape=[True, 4])}),
        (one, {"a": entry(shape=[4.0])}),
        (one, {"a": entry(shape=[2])}),
        (one, {"a": entry(shape=[3], offsets=[1, 4])}),
        (one, {"a": entry("F32", [1], [0, 4]), "b": entry("F32", [1], [0, 4])}),
        (one, {"a": entry(), "b": entry(shape=[0, 2**62, 2**62], offsets=[4, 4])}),
        ('{"tensor":"b"}', {"a": entry(), "b": entry(shape=[0, 2**62, 2**62], offsets=[4, 4])}),
        (one, {"a": entry("BOOL")}),
        (one, {"a": entry("STRING")}),
        (one, {"a": entry([])}),
        (one, {"a": 3}),
        (one, {"a": {}}),
        ('{"array":"a"}', {"a": entry("BF16", [2])}),
        ("[1]", {"a": entry()}),
        ("{}", {"a": entry()}),
        ('{"set":[]}', {"a": entry()}),
        ('{"dict":[[[],1]]}', {"a": entry()}),
        ('{"dict":[[1,2],[1,{"tensor":"a"}]]}', {"a": entry()}),
        ('{"dict":[[null,{"tensor":"a"}]]}', {"a": entry()}),
        ('{"dict":3}', {"a": entry()}),
        ('{"tensor":["a"]}', {"a": entry()}),
        ('{"list":[' * 200 + one + "]}" * 200, {"a": entry()}),
        ("[" * 1_000_000, {"a": entry()}),
        ("{", {"a": entry()}),
        ("9" * 100_000, {"a": entry()}),
        (3, {"a": entry()}),
        (None, {"a": entry()}),
    ]:
        forge(path, state, arrays, four)
        begun = time.perf_counter()
        with pytest.raises(OwlValueError, match="load_state"):
            load_state(path)
        assert time.perf_counter() - begun < 2.0


@pytest.mark.parametrize(
    ("state", "array"),
    [
        ("[1]", entry()),
        ('{"list":[],"dict":[]}', entry()),
        ('{"tensor":"a"}', entry(shape=[-1, -1, 4])),
        ('{"tensor":"a"}', entry("F7")),
        ('{"tensor":"a"}', entry("U8", [True, 4])),
    ],
)
def test_a_header_that_no_save_writes_is_not_blamed_on_memory(state, array, tmp_path):
    forge(tmp_path / "s", state, {"a": array}, b"four")
    with pytest.raises(OwlValueError) as caught:
        load_state(tmp_path / "s")
    assert checkpoint.UNLIKE in str(caught.value) and "memory" not in str(caught.value)


def test_an_interrupt_after_the_file_was_moved_stays_an_interrupt(tmp_path):
    path = tmp_path / "s"
    with pytest.raises(KeyboardInterrupt), checkpoint._replacing(path):
        (left,) = tmp_path.iterdir()
        left.replace(path)
        raise KeyboardInterrupt
    assert [each.name for each in tmp_path.iterdir()] == ["s"]


def test_a_file_that_is_cut_while_it_is_read_is_refused(tmp_path, monkeypatch):
    save_state(tmp_path / "s", {"a": torch.zeros(1_000)})
    read_header = checkpoint._read_header

    def cut(file, size):
        found = read_header(file, size)
        os.truncate(tmp_path / "s", size - 100)
        return found

    monkeypatch.setattr(checkpoint, "_read_header", cut)
    with pytest.raises(OwlValueError, match="ends early"):
        load_state(tmp_path / "s")


def test_a_load_goes_on_with_the_file_that_it_opened(tmp_path, monkeypatch):
    save_state(tmp_path / "s", {"a": torch.zeros(1_000), "k": 0})
    read_header = checkpoint._read_header

    def replaced(file, size):
        save_state(tmp_path / "s", {"a": torch.ones(1_000), "k": 1})
        return read_header(file, size)

    monkeypatch.setattr(checkpoint, "_read_header", replaced)
    state = load_state(tmp_path / "s")
    assert state["k"] == 0 and not state["a"].any()


def test_generators_are_set_all_or_none():
    before = get_rng_state()
    far = [*before["numpy"][:2], 10**6, 0, 0.0]
    python = {**before, "python": [3, [1, 2], None]}
    for wrong in [{}, python, {**before, "numpy": ["MT19937", 3]}, {**before, "numpy": far}]:
        other = {**wrong, "torch": torch.Generator().manual_seed(5).get_state()} if wrong else wrong
        with pytest.raises(OwlValueError, match="the state does not fit"):
            set_rng_state(other)
        assert same_state(get_rng_state(), before)


def test_the_header_is_json_that_others_can_read(tmp_path):
    save_state(tmp_path / "s", {"task": "left"})
    with safe_open(str(tmp_path / "s"), framework="pt") as file:
        assert "left" in json.dumps(json.loads(file.metadata()["state"]))


# ------------------------------------------------------------------------------------- old or new


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


def test_a_link_stays_and_the_file_keeps_its_mode(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "target", tmp_path / "link"
    save_state(target, 1)
    target.chmod(0o600)
    link.symlink_to(target)
    save_state(link, 2)
    assert link.is_symlink() and load_state(target) == 2 and stat.S_IMODE(target.stat().st_mode) == 0o600
    (tmp_path / "dangling").symlink_to(tmp_path / "elsewhere" / "new")
    save_state(tmp_path / "dangling", 3)
    assert load_state(tmp_path / "elsewhere" / "new") == 3
    assert sorted(p.name for p in (tmp_path / "elsewhere").iterdir()) == ["new", "target"]


def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "round").symlink_to(tmp_path / "round")
    for name in ("pipe", "round"):
        with pytest.raises(OSError, match="not a regular file"):
            save_state(tmp_path / name, {})
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode) and (tmp_path / "round").is_symlink()


def test_nobody_else_reads_a_private_file_while_it_is_written(tmp_path, monkeypatch):
    save_state(tmp_path / "s", 1)
    (tmp_path / "s").chmod(0o600)
    modes, fsync = [], os.fsync

    def look(handle):
        modes.append(os.fstat(handle).st_mode)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", look)
    save_state(tmp_path / "s", 2)
    assert stat.S_IMODE(modes[0]) == 0o600


def test_a_very_long_name_can_be_saved(tmp_path):
    path = tmp_path / ("n" * 255)
    save_state(path, 1)
    save_state(path, 2)
    assert load_state(path) == 2 and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("number", "kind"), [(errno.EROFS, OSError), (errno.EACCES, PermissionError)])
def test_where_nothing_can_be_written_the_error_says_so(tmp_path, monkeypatch, number, kind):
    save_state(tmp_path / "s", 1)
    opened = os.open

    def refuse(path, flags, *mode):
        if flags & os.O_CREAT:
            raise OSError(number, os.strerror(number))
        return opened(path, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(kind, match=f"could not write .*{os.strerror(number)}.*is unchanged") as caught:
        save_state(tmp_path / "s", 2)
    assert caught.value.errno == number
    monkeypatch.undo()
    assert load_state(tmp_path / "s") == 1


def test_temporary_files_of_the_dead_are_removed_and_those_of_the_living_are_not(tmp_path, monkeypatch):
    path = tmp_path / "s"
    handle, living = checkpoint._open_temporary(path, 0o600)
    dead = tmp_path / ".s.owl-0123456789ab.tmp"
    others = [tmp_path / name for name in (".t.owl-0123456789ab.tmp", ".s.x.tmp", "s.owl-0123456789ab.tmp")]
    for item in (dead, *others):
        item.write_text("")
    save_state(path, 1)
    assert living.exists() and not dead.exists() and all(item.exists() for item in others)
    os.close(handle)  # as the system does when a process ends
    save_state(path, 2)
    assert not living.exists()
    monkeypatch.setattr(checkpoint, "fcntl", None)  # without locks: by age
    old, new = tmp_path / ".s.owl-aaaaaaaaaaaa.tmp", tmp_path / ".s.owl-bbbbbbbbbbbb.tmp"
    for item, age in ((old, 2 * checkpoint.DAY), (new, 60.0)):
        item.write_text("")
        os.utime(item, (time.time() - age,) * 2)
    save_state(path, 3)
    assert not old.exists() and new.exists() and load_state(path) == 3


def test_a_temporary_file_that_was_taken_for_a_leftover_is_made_again(tmp_path, monkeypatch):
    real, taken = checkpoint.fcntl.flock, []

    def flock(handle, how):
        if not taken:  # another process comes between making and locking
            taken.extend(tmp_path.iterdir())
            taken[0].unlink()
        real(handle, how)

    monkeypatch.setattr(checkpoint.fcntl, "flock", flock)
    save_state(tmp_path / "s", 1)
    assert len(taken) == 1 and load_state(tmp_path / "s") == 1


def test_several_savers_do_not_disturb_each_other(tmp_path):
    path, errors = tmp_path / "s", []

    def save(number):
        try:
            for _ in range(20):
                save_state(path, {"a": torch.full((2_000,), number), "k": number})
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=save, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if path.exists():
            state = load_state(path)
            assert bool((state["a"] == state["k"]).all())
    assert not errors and list(tmp_path.iterdir()) == [path]


def test_an_array_that_changes_meanwhile_gives_a_readable_file(tmp_path):
    array, stop = np.zeros(2_000_000), threading.Event()

    def change():
        while not stop.is_set():
            array[:] += 1

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(3):
            save_state(tmp_path / "s", array)
            assert load_state(tmp_path / "s").shape == array.shape
    finally:
        stop.set()
        thread.join()


def test_saving_and_loading_take_little_memory(tmp_path):
    """In a process of its own, since only the highest mark can be asked for."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        saving, loading = pool.apply(_peaks, (str(tmp_path / "s"),))
    assert saving < 40 and loading < 160  # MB, of a state of 120


def _peaks(path):
    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    save_state(path, {"a": torch.zeros(10), "b": np.zeros((10, 10)).T})
    load_state(path)
    state = {"rows": np.ones((6_000, 10_000), np.uint8), "turned": np.ones((5_000, 3_000), np.float32).T}
    before = peak()
    save_state(path, state)
    saved = peak()
    load_state(path)
    return saved - before, peak() - saved


def test_write_atomically_replaces_all_of_it(tmp_path):
    write_atomically(tmp_path / "page", b"a long text")
    write_atomically(tmp_path / "page", b"short")
    assert (tmp_path / "page").read_bytes() == b"short"


@pytest.mark.parametrize("number", [3, 10])
def test_files_of_later_formats_are_said_to_be_newer(number, tmp_path):
    save_state(tmp_path / "s", {"a": 1})
    data = (tmp_path / "s").read_bytes().replace(b"owlrl-state-2", f"owlrl-state-{number}".encode(), 1)
    header = 8 + int.from_bytes(data[:8], "little") + len(str(number)) - 1
    (tmp_path / "s").write_bytes((header - 8).to_bytes(8, "little") + data[8:])
    with pytest.raises(OwlValueError, match=rf"format 'owlrl-state-{number}'.*newer owlrl"):
        load_state(tmp_path / "s")
