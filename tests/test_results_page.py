"""The tables of the results are what the commands above them print."""

from __future__ import annotations

import json

from scripts.figures import DIGESTS, FIGURES, IMAGES, digests, summary_table
from scripts.results_page import BARE_CALL, PAGES, PRINTED, SUMMARY, bare_call, printed

ALL_TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
COMMANDS = list(PRINTED.finditer(ALL_TEXT))


def test_every_study_on_the_pages_is_checked():
    assert len(COMMANDS) == ALL_TEXT.count("\nowlrl reproduce ") == ALL_TEXT.count("<!-- printed -->") >= 7


def test_tables_are_what_the_commands_print():
    for command in COMMANDS:
        same = command["tables"] == f"\n{printed(command)}\n"
        assert same, f"{command['study']} has changed; run: python -m scripts.results_page"


def test_the_table_of_the_bare_call_is_that_of_the_runs():
    (found,) = BARE_CALL.finditer(ALL_TEXT)
    assert found["table"] == f"{bare_call()}\n", "the runs have changed; run: python -m scripts.results_page"
    assert found["table"].count("\n") > 10


def test_the_summary_is_that_of_the_runs():
    blocks = list(SUMMARY.finditer(ALL_TEXT))
    assert len(blocks) >= 5
    for block in blocks:
        table = summary_table(*block["studies"].split())
        assert table.count("**owlrl**") >= 1
        assert block["table"] == f"{table}\n", "the runs have changed; run: make figures"


def test_figures_are_drawn_from_the_runs_as_they_are():
    assert json.loads(DIGESTS.read_text(encoding="utf-8")) == digests(), "run: make figures"
    assert all((IMAGES / f"{name}.svg").exists() for name in FIGURES)
    shown = {name for name in FIGURES if f"images/{name}.svg" in ALL_TEXT}
    assert set(FIGURES) - shown <= {"curve"}  # which is the README's
