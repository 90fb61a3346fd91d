"""MultiMNIST: files, images of two digits, and what one head and two make of them, on digits drawn here."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch

from owlrl.errors import OwlValueError
from owlrl.experiments import reproduce
from owlrl.experiments.multi_mnist import (
    DIGIT,
    SIZE,
    Digits,
    SupervisedRun,
    draw_supervised,
    read_digits,
    read_idx,
    supervised_rows,
    supervised_runs,
    two_digits,
)

PATTERNS = np.kron(np.random.default_rng(7).integers(0, 2, (10, 7, 7)), np.full((4, 4), 255)).astype(np.uint8)


def drawn(count: int, *, seed: int) -> Digits:
    """Easy digits: each class has a pattern of coarse squares, here with some noise."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count)
    noise = rng.integers(0, 30, (count, DIGIT, DIGIT)).astype(np.uint8)
    return Digits(np.maximum(PATTERNS[labels], noise), labels.astype(np.uint8))


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def test_files_of_the_idx_format_are_read(tmp_path):
    digits = drawn(5, seed=0)
    for prefix in ("train", "t10k"):
        (tmp_path / f"{prefix}-images-idx3-ubyte").write_bytes(idx(digits.images))
        (tmp_path / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(digits.labels)))
    found = read_digits(tmp_path)
    for part in ("train", "test"):
        assert np.array_equal(found[part].images, digits.images)
        assert np.array_equal(found[part].labels, digits.labels)
    (tmp_path / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(OwlValueError, match=r"no t10k-images-idx3-ubyte; expected MNIST's four IDX files"):
        read_digits(tmp_path)


@pytest.mark.parametrize("damage", [b"", b"\x00\x00\x08", idx(np.zeros((2, 3), np.uint8))[:-1], b"PNG" * 9])
def test_damaged_files_are_refused(damage, tmp_path):
    (tmp_path / "x").write_bytes(damage)
    with pytest.raises(OwlValueError, match="no whole IDX file"):
        read_idx(tmp_path / "x")


def test_two_digits_are_moved_by_at_most_four_pixels_and_of_two_classes():
    digits = Digits(np.full((20, DIGIT, DIGIT), 200, np.uint8), np.arange(20) % 10)
    pairs = two_digits(digits, 300, seed=1)
    assert (pairs.labels[:, 0] != pairs.labels[:, 1]).all()
    ys, xs = np.nonzero(pairs.images.any(0))
    assert (ys.min(), xs.min(), ys.max(), xs.max()) == (0, 0, SIZE - 1, SIZE - 1)
    first = np.array([[np.nonzero(image.any(axis))[0].min() for axis in (1, 0)] for image in pairs.images])
    assert set(np.unique(first)) == set(range(9))
    again = two_digits(digits, 300, seed=1)
    assert np.array_equal(again.images, pairs.images) and np.array_equal(again.labels, pairs.labels)
    with pytest.raises(OwlValueError, match="one class"):
        two_digits(Digits(digits.images, np.zeros(20, int)), 3, seed=0)


@pytest.mark.slow
def test_one_head_must_lose_the_first_task_and_two_heads_need_not():
    train, test = (two_digits(drawn(500, seed=s), 1500, seed=s) for s in (0, 1))
    small = {"images": 1500, "epochs": 5, "batch_size": 32, "learning_rate": 0.001, "memory_size": 256}
    one, two = (SupervisedRun("gem", heads, **small).run(train, test) for heads in (1, 2))
    assert one[0][0] > 0.9 and two[0][0] > 0.9
    # labels of the two digits always differ: one answer is right for one task at most
    assert one[1][0] + one[1][1] <= 1.0
    assert two[1][1] > 0.8 and two[1][0] > one[1][0] + 0.4


@pytest.mark.parametrize("method", ["none", "ewc", "a-gem"])
def test_other_methods_run(method):
    train, test = (two_digits(drawn(60, seed=s), 60, seed=s) for s in (0, 1))
    found = SupervisedRun(method, 2, images=60, memory_size=8).run(train, test)
    assert np.shape(found) == (2, 2) and np.isfinite(found).all()


def test_bad_arguments_are_named():
    with pytest.raises(OwlValueError, match=r"(?s)heads is 3.*epochs is 0"):
        SupervisedRun("ewc", 3, epochs=0)


def test_a_picture_has_a_bar_per_task_and_case():
    rows = [
        {"method": m, "heads": h, "seed": s, "accuracy": [[0.9, 0.1], [0.5, 0.9]]}
        for m in ("ewc", "gem") for h in (1, 2) for s in (0, 1)
    ]  # fmt: skip
    figure = draw_supervised(rows, two_digits(drawn(9, seed=0), 2, seed=0))
    assert [len(axis.patches) for axis in figure.axes] == [0, 8, 8]


def test_one_gaussian_head_for_two_targets_has_a_loss_floor():
    """The paper's observation: for targets f₁ and f₂ in equal parts no prediction is below (f₁ − f₂)²/4."""
    f1, f2 = torch.tensor([1.0, -3.0, 2.0]).double(), torch.tensor([0.0, 5.0, 2.0]).double()
    prediction = torch.zeros(3, dtype=torch.float64, requires_grad=True)

    def loss() -> torch.Tensor:
        return ((prediction - f1).square() + (prediction - f2).square()) / 2

    for _ in range(200):
        (grad,) = torch.autograd.grad(loss().sum(), prediction)
        with torch.no_grad():
            prediction -= 0.25 * grad
    torch.testing.assert_close(loss().detach(), (f1 - f2).square() / 4, rtol=0, atol=1e-12)
    torch.testing.assert_close(prediction.detach(), (f1 + f2) / 2, rtol=0, atol=1e-12)


def write_digits(folder):
    digits = drawn(60, seed=3)
    for prefix in ("train", "t10k"):
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx(digits.images))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(digits.labels))


def test_the_study_keeps_each_run_and_goes_on_from_there(tmp_path, monkeypatch):
    monkeypatch.setattr("owlrl.experiments.multi_mnist.TEST", 20)
    write_digits(tmp_path)
    output = tmp_path / "runs"
    chosen = {"seeds": 1, "methods": ("gem",), "frames": 30, "progress": False}
    with pytest.raises(OwlValueError, match="data is None; expected a folder with MNIST's four IDX files"):
        reproduce("multi_mnist", output, **chosen)
    first, errors = reproduce("multi_mnist", output, **chosen, data=tmp_path)
    assert not errors
    assert [line.split(" | ")[:3] for line in first.splitlines()[2:]] == [
        ["| gem", "1", "1"],
        ["| gem", "2", "1"],
    ]
    rows = supervised_rows(output / "multi_mnist")
    assert [(row["method"], row["heads"], row["images"]) for row in rows] == [("gem", 1, 30), ("gem", 2, 30)]
    # nothing is missing, so that no digits are needed
    assert reproduce("multi_mnist", output, **chosen) == (first, [])
    with pytest.raises(OwlValueError, match="methods has a-gem; expected some of none, ewc, gem"):
        supervised_runs(seeds=1, methods=["a-gem"])
