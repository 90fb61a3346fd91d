"""The tables of the results are what the commands above them print."""

from __future__ import annotations

import pytest

from scripts.results_page import PAGE, PRINTED, printed

PAGE_TEXT = PAGE.read_text(encoding="utf-8")
COMMANDS = list(PRINTED.finditer(PAGE_TEXT))


def test_every_study_on_the_page_is_checked():
    assert len(COMMANDS) == PAGE_TEXT.count("\nowlrl reproduce ") == PAGE_TEXT.count("<!-- printed -->") >= 7


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command["study"])
def test_tables_are_what_the_command_prints(command):
    assert command["tables"] == f"\n{printed(command)}\n", "run: python scripts/results_page.py"
