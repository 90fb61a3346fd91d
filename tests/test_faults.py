"""The fault campaign runs, a short version of it, and finds the faults that are put in its way."""

import subprocess
import sys

import pytest

from scripts.faults import __main__ as faults
from scripts.faults import files
from scripts.faults.checks import CHECKS, CannotRunError, Check, Outcome


def test_a_short_campaign_finds_nothing():
    command = [sys.executable, "-m", "scripts.faults", "--short"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0 and "No faults." in run.stdout, run.stdout + run.stderr
    assert "May be unable to run: none" in run.stdout
    assert run.stdout.count("\n| ") == 1 + sum(bool(item.short) for item in CHECKS)


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
