"""The tables of the results are what the commands above them print."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from benchmarks.defaults import judgements, verdict
from owlrl.experiments.policies import ORACLE
from owlrl.experiments.session import CONTROL_FOLLOWED
from scripts import compared, figures
from scripts.figures import (
    DIGESTS,
    FIGURES,
    IMAGES,
    RETURNS,
    STUDIES,
    digests,
    from_notebooks,
    summary,
    summary_table,
)
from scripts.results_data import results_in
from scripts.results_page import (
    BARE_CALL,
    BLOCK,
    BLOCKS,
    PAGES,
    PRINTED,
    SUMMARY,
    TELLING,
    bare_call,
    pendulum_block,
    printed,
    telling,
)

ALL_TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
GALLERY = (IMAGES.parent / "gallery.md").read_text(encoding="utf-8")
COMMANDS = list(PRINTED.finditer(ALL_TEXT))


def test_every_study_on_the_pages_is_checked():
    assert len(COMMANDS) == ALL_TEXT.count("\nowlrl reproduce ") == ALL_TEXT.count("<!-- printed -->") >= 7


def test_tables_are_what_the_commands_print():
    for command in COMMANDS:
        same = command["tables"] == f"\n{printed(command)}\n"
        assert same, f"{command['study']} has changed; run: python -m scripts.results_page"


def test_the_tables_of_the_paper_are_those_of_the_runs():
    found = {block["name"]: block["table"] for block in BLOCK.finditer(ALL_TEXT)}
    assert set(found) == set(BLOCKS)
    for name, table in found.items():
        assert table == BLOCKS[name](), f"{name} has changed; run: python -m scripts.results_page"


def test_the_table_of_the_bare_call_is_that_of_the_runs():
    (found,) = BARE_CALL.finditer(ALL_TEXT)
    assert found["table"] == f"{bare_call()}\n", "the runs have changed; run: python -m scripts.results_page"
    assert found["table"].count("\n") > 10


def test_the_verdict_counts_cases_whose_tasks_all_reach_the_bars():
    def run(seed: int, given: float, unknown: float) -> dict[str, Any]:
        cell = {"right after": 200.0, "random heads": 0.0, "given": given, "unknown": unknown}
        cells = {"found": 1.0, "steps to find": 1.0}
        return {"case": "cartpole-script", "seed": seed, "tasks": {"plain": cell | cells}}

    unlearned = run(2, 50.0, 50.0)
    unlearned["tasks"]["plain"]["right after"] = 99.0  # less than half of the way to 200
    mean, worst = verdict(judgements([run(0, 200.0, 200.0), run(1, 192.0, 192.0), unlearned])).split("\n\n")
    assert mean.startswith("1 of 1 ") and mean.endswith("exceptions: none.")
    assert worst.startswith("0 of 1 ") and worst.endswith("exceptions: cartpole-script plain (kept 0.960).")
    (mean, _) = verdict(judgements([run(0, 200.0, 180.0)])).split("\n\n")
    assert mean.endswith("exceptions: cartpole-script plain (unknown / given 0.900).")


def test_the_summary_is_that_of_the_runs(monkeypatch):
    rows = list(summary())
    monkeypatch.setattr(figures, "summary", lambda: rows)  # the same for all blocks
    blocks = list(SUMMARY.finditer(ALL_TEXT))
    assert len(blocks) >= 5
    for block in blocks:
        table = summary_table(*block["studies"].split())
        assert table.count("**owlrl**") >= 1
        assert block["table"] == f"{table}\n", "the runs have changed; run: make figures"


def test_returns_are_from_random_actions_to_separate_models():
    for name in RETURNS.values():
        study = compared.study_of(name)
        floor, ceiling = study.scores("random actions", mode="unknown"), study.scores("alone")
        assert np.allclose(compared.relative(study, floor).mean(axis=0), 0), name
        assert np.allclose(compared.relative(study, ceiling).mean(axis=0), 1), name
    rows = {(row.study, row.method): row for row in summary()}
    owl = compared.study_of("reacher").scores("owl", mode="unknown").mean()
    ours, bare = rows["Reacher", "owlrl"], rows["Reacher", "one head"]
    assert ours.unknown.value == pytest.approx((owl - 14.09) / (44.70 - 14.09), abs=0.03)  # means over goals
    assert bare.unknown is None and bare.forgetting.value > 0.5 > ours.forgetting.value
    assert {row.study for row in rows.values()} == {*STUDIES, *RETURNS}


def test_telling_rows_are_three_rows_of_the_tables_below_them():
    seen = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in TELLING.finditer(text):
            (command,) = PRINTED.finditer(text)
            assert found["table"] == telling(int(found["number"]), found["rows"], command["tables"]), (
                page.name
            )
            assert found["table"].count("\n") == 2 + 3, page.name
            seen += 1
    assert seen >= 4


def test_figures_are_drawn_from_the_runs_as_they_are():
    assert json.loads(DIGESTS.read_text(encoding="utf-8")) == digests(), "run: make figures"
    assert all((IMAGES / f"{name}.svg").exists() for name in FIGURES)
    shown = {name for name in FIGURES if f"images/{name}.svg" in ALL_TEXT}
    assert set(FIGURES) - shown <= {"curve"}  # which is the README's


def test_pendulums_of_the_paper_have_pictures_as_soon_as_owl_was_run(monkeypatch):
    monkeypatch.setattr(figures, "results_in", lambda directory: [])
    assert figures.drawn_pendulums() == {} and "svg" not in pendulum_block()
    trials = results_in(figures.PENDULUM)
    monkeypatch.setattr(figures, "results_in", lambda directory: trials)
    drawn = figures.drawn_pendulums()
    assert all(f"(images/{name}.svg)" in pendulum_block() for name in drawn) and len(drawn) == 3
    titles = [axes.get_title() for axes in drawn["paper-arms"][0]().axes]
    assert titles[0].startswith("owl, pendulum+90") and titles[2].startswith("experience-replay")
    curves = drawn["paper-pendulums"][0]()
    assert len(curves.axes) == 4 and "reference" in [text.get_text() for text in curves.legends[0].texts]
    assert {*figures.FEEDBACK} <= {ORACLE, *CONTROL_FOLLOWED}  # else there is nothing to draw the third of


def test_pictures_of_the_gallery_are_those_of_the_notebooks():
    found = dict(from_notebooks())
    assert len(found) >= 7
    for path, picture in found.items():
        assert path.read_bytes() == picture, f"{path.name} is out of date; run: make figures"
        assert f"images/{path.name}" in GALLERY
