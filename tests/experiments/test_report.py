from __future__ import annotations

import base64
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from owlrl import cli
from owlrl.cli import main
from owlrl.errors import OwlStateError, OwlValueError
from owlrl.experiments import Run, Trial, run_experiment, study_runs, write_report
from owlrl.experiments import _optional as optional_module
from owlrl.experiments import report as module
from owlrl.experiments.report import commands_for, train_command
from tests.experiments.helpers import evaluation, result, score, tiny, training
from tests.experiments.test_plots import trace

VOID = {"meta", "img"}
STRANGE = "<script>alert('a')</script>"


class Page(HTMLParser):
    """What is on a page; fails on tags that do not close, and on anything from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.pictures: list[bytes] = []
        self.texts: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "src":
                kind, _, data = value.partition(";base64,")
                assert kind in ("data:image/png", "data:image/gif")
                self.pictures.append(base64.b64decode(data, validate=True))
            if name == "href":
                assert value.startswith("#")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def kinds(self) -> tuple[int, int]:
        """How many PNGs and GIFs there are."""
        gifs = sum(picture.startswith(b"GIF89a") for picture in self.pictures)
        assert all(picture.startswith((b"GIF89a", b"\x89PNG")) for picture in self.pictures)
        return len(self.pictures) - gifs, gifs


def read(path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of one method, the second with its checkpoint, and one head for all with its own."""
    directory = tmp_path_factory.mktemp("runs")
    policies = ("oracle", "hedge+td", "random")
    for seed in (0, 1):
        run = tiny(policies=policies, seed=seed)
        checkpoint = directory / f"{run.id}.safetensors" if seed else None
        run_experiment(run, checkpoint=checkpoint).write(directory)
    run = tiny(method="experience-replay")
    run_experiment(run, checkpoint=directory / f"{run.id}.safetensors").write(directory)
    return directory


def test_everything_on_one_page(runs):
    path = write_report(runs)
    assert path == runs / "report.html"
    page = read(path)
    # Curves; of each task frames, and probabilities if there are heads; values; what moves.
    assert page.kinds() == (1 + (2 + 2 + 1) + (2 + 1), 2)
    for words in (
        "3 runs",
        "torch",
        "git revision",
        "interquartile mean over seeds [95 % stratified bootstrap]",
        "forgetting",
        "right head at the end",
        "owl-memory, seed 1: one episode per task",
        "python -c",
    ):
        assert words in page.text
    assert not list(runs.glob("*.tmp"))


def test_the_command(runs, tmp_path, capsys):
    target = tmp_path / "new" / "page.html"
    assert main(["report", str(runs), "--output", str(target), "--episodes", "1"]) == 0
    assert capsys.readouterr().out == f"{target}\n"
    assert read(target).kinds() == (1 + (1 + 1 + 1) + (1 + 1), 1)
    assert main(["report", str(runs), "--episodes", "-1"]) == 2
    assert "episodes is -1" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "no")]) == 2
    assert "there is no such directory" in capsys.readouterr().err


def test_traces_in_the_results_do_without_a_checkpoint(tmp_path):
    rows = [training("a", 0, 10), score(10, "a", 1.0), evaluation("oracle", "a", 1.0)]
    rows += [evaluation("hedge+td", "a", 0.5), evaluation("hedge+reward", "a", 0.75)]
    for policy in ("hedge+td", "hedge+reward"):
        rows += [{**trace(["a", "b"], 4), "kind": "trace", "policy": policy, "task": task} for task in "ab"]
    result(Run("SC2"), *rows).write(tmp_path)
    page = read(write_report(tmp_path))
    assert page.kinds() == (1 + 2, 0)
    assert "seed 0: one episode per task" in page.text


def test_several_sections_have_a_list_of_them(tmp_path):
    rows = [training("a", 0, 10), score(10, "a", 1.0), evaluation("oracle", "a", 1.0)]
    for run in (Run("SC2"), Run("SC3"), Run("SC2", seed=1)):
        result(run, *rows).write(tmp_path)
    page = read(write_report(tmp_path))
    assert page.tags.count("a") == page.tags.count("h2") == 2
    assert page.kinds() == (2, 0)


def test_many_methods_are_several_pictures(tmp_path):
    rows = [training("a", 0, 10), score(10, "a", 1.0), evaluation("oracle", "a", 1.0)]
    for strength in range(5):
        result(Run("SC2", strength=float(strength)), *rows).write(tmp_path)
    assert read(write_report(tmp_path)).kinds() == (2, 0)


def test_names_are_text_and_nothing_else(tmp_path):
    rows = [training(STRANGE, 0, 10), score(10, STRANGE, 1.0), evaluation("oracle", STRANGE, 1.0)]
    rows += [evaluation(f"{STRANGE}+x", STRANGE, 1.0)]
    rows += [{**trace([STRANGE, "b"], 4), "kind": "trace", "policy": f"{STRANGE}+x", "task": STRANGE}]
    run = Run("Crossroads-2", arguments={"max_steps": 9}, frames_by_task={"crossroads-0": 4})
    info = {"git": STRANGE, "versions": {STRANGE: STRANGE}}
    replace(result(run, *rows), info=info).write(tmp_path)
    (tmp_path / "<img src=x>.jsonl").write_text("{", encoding="utf-8")
    page = read(write_report(tmp_path))
    assert "script" not in page.tags and page.tags.count("img") == 2
    assert page.text.count(STRANGE) >= 4
    assert "<img src=x>.jsonl is no result" in page.text


def test_a_directory_is_no_place_for_the_page(tmp_path):
    result(Run("SC2"), evaluation("oracle", "a", 1.0)).write(tmp_path)
    with pytest.raises(OwlValueError, match="a directory; expected a file's name"):
        write_report(tmp_path, tmp_path)


def test_partial_results_give_what_they_have(tmp_path):
    Trial.of(Run("SC2")).write(tmp_path)
    assert read(write_report(tmp_path)).kinds() == (0, 0)
    result(Run("SC2", seed=1), evaluation("oracle", "a", 1.0)).write(tmp_path)
    result(Run("SC3"), training("a", 0, 10), score(10, "a", 1.0)).write(tmp_path)
    assert read(write_report(tmp_path)).kinds() == (1, 0)


def test_a_checkpoint_that_cannot_be_used_is_said(tmp_path):
    run = tiny(policies=("oracle", "hedge+td"))
    path = result(run, evaluation("oracle", "a", 1.0)).write(tmp_path)
    path.with_suffix(".safetensors").write_bytes(b"nothing")
    page = read(write_report(tmp_path))
    assert "The checkpoint could not be used" in page.text and "is not a readable checkpoint" in page.text


def test_the_picture_of_the_demonstration(tmp_path):
    (tmp_path / "demo.png").write_bytes(b"\x89PNG")
    page = read(write_report(tmp_path))
    assert page.kinds() == (1, 0) and "The demonstration" in page.text
    (tmp_path / "demo-stream.png").write_bytes(b"\x89PNG")
    page = read(write_report(tmp_path))
    assert page.kinds() == (2, 0) and "Drawn by owlrl demo stream." in page.text


def test_no_results_is_an_error(tmp_path):
    with pytest.raises(OwlValueError, match=r"has no results; make some, e\.g\. owlrl train --output"):
        write_report(tmp_path)
    (tmp_path / "x.jsonl").write_text("{", encoding="utf-8")
    with pytest.raises(OwlValueError, match=r"has no results.*x\.jsonl is no result"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_the_old_report_stays_if_the_new_one_fails(tmp_path, monkeypatch):
    Trial.of(Run("SC2")).write(tmp_path)
    path = write_report(tmp_path)
    before = path.read_bytes()

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(module, "write_atomically", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(tmp_path)
    assert path.read_bytes() == before


def test_missing_libraries_are_said_before_any_work(tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(optional_module.importlib, "import_module", missing)
    with pytest.raises(OwlStateError, match=r"a report needs matplotlib.*pip install .*(matplotlib|plots)"):
        write_report(tmp_path / "nowhere")


def test_the_page_loads_nothing(runs, tmp_path):
    text = write_report(runs, tmp_path / "x.html", episodes=0).read_text(encoding="utf-8")
    assert Page(text).kinds() == (1, 0)
    assert "default-src 'none'" in text
    assert not re.search(r"https?://|<script|<link|@import|url\(", text)


ASKED = [
    Run(),
    Run("crossroads-4", arguments={"breadcrumbs": True, "length": 2}, seed=3, frames=7, method="owl"),
    Run(
        "owlrl/SimpleCrossing-v0:3,7",
        rounds=2,
        learner="paper",
        overrides={"n_step": 3, "epsilon": [1.0, 0.1]},
    ),
    Run("SC3", strength=2.5, policies=("oracle", "hedge+td"), episodes=4, consecutive=3, unseen=("S9N1:2",)),
]


@pytest.mark.parametrize("run", ASKED, ids=lambda run: run.id)
def test_the_command_asks_for_the_very_same_run(run):
    words = shlex.split(train_command(run))
    assert words[:2] == ["owlrl", "train"]
    assert cli._parse(words[1:]).run() == run


@pytest.mark.parametrize("run", [tiny(frames_by_task={"crossroads-0": 5}), Run("owlrl/Pendulum-v0:90,-90")])
def test_what_the_command_has_no_option_for_is_python(monkeypatch, run):
    python, flag, code = shlex.split(train_command(run))
    assert (python, flag) == ("python", "-c")
    asked = []
    monkeypatch.setattr("owlrl.experiments.run_experiment", lambda run: asked.append(run) or Trial.of(run))
    monkeypatch.setattr(Trial, "write", lambda trial, directory: None)
    exec(code, {})
    assert asked == [run]


def test_whole_studies_are_one_command():
    two = study_runs("sc3", seeds=2)
    assert commands_for(two) == ["owlrl reproduce sc3 --seeds 2"]
    assert commands_for([*two, ASKED[1]])[1:] == [train_command(ASKED[1])]
    lone = study_runs("sc3", seeds=3)[-1]  # of a third seed that is not complete
    assert commands_for([*two, lone]) == ["owlrl reproduce sc3 --seeds 2", train_command(lone)]
    assert commands_for([]) == []
