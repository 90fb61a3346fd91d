"""The fault campaign runs, a short version of it, and finds the faults that are put in its way."""

import pytest

from scripts.faults import __main__ as faults
from scripts.faults import files
from scripts.faults.checks import CHECKS, CannotRunError, Check, Outcome


def test_a_short_campaign_finds_nothing(capsys):
    assert faults.main(["--short"]) == 0
    told = capsys.readouterr().out
    assert "No faults." in told and "May be unable to run: none" in told
    assert told.count("\n| ") == 1 + sum(bool(item.short) for item in CHECKS)


def test_the_table_goes_into_its_page_and_a_rerun_goes_on(tmp_path, monkeypatch):
    page, record, calls = tmp_path / "page.md", tmp_path / "record", []
    page.write_text(f"before\n{faults.MARKS[0]}old\n{faults.MARKS[1]}after\n")

    def run(count, *_):
        calls.append(count)
        return Outcome(count, [], "a note")

    monkeypatch.setattr(faults, "CHECKS", [Check("odd things", 1, 1, 2, run)])
    for _ in range(2):
        assert faults.main(["--full", "--page", str(page), "--record", str(record)]) == 0
    begin, table, end = page.read_text().partition("| odd things | 2 | 0 | 0 | a note |\n")
    assert (
        table and begin.startswith("before\n") and end == f"{faults.MARKS[1]}after\n" and "old" not in begin
    )
    assert calls == [2]


def test_faults_are_found_and_counted(capsys, monkeypatch):
    found = Outcome(3, ["one", "two"], "a note")
    monkeypatch.setattr(faults, "CHECKS", [Check("odd things", 1, 1, 2, lambda *_: found)])
    assert faults.main([]) == 1
    shown = capsys.readouterr().out
    assert "| odd things | 3 | 2 | 0 | a note |" in shown and "odd things: two" in shown


@pytest.mark.parametrize(("options", "code"), [([], 1), (["--may-miss", "disk"], 0)])
def test_a_check_that_cannot_run_fails_unless_it_is_listed(options, code, capsys, monkeypatch):
    def cannot(*_):
        raise CannotRunError("needs a second disk")

    monkeypatch.setattr(faults, "CHECKS", [Check("disk", 1, 1, 2, cannot)])
    assert faults.main(options) == code
    shown = capsys.readouterr().out
    assert "could not run: needs a second disk" in shown
    assert f"May be unable to run: {'disk' if options else 'none'}" in shown


def test_mixed_states_are_told_from_whole_ones():
    state = files.numbered(3, 10)
    assert files.is_whole(state)
    state["parts"]["2"][4] = 2.0
    assert not files.is_whole(state)
