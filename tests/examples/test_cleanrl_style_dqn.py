"""The single-file DQN and the same with owlrl: a small difference, and the same script otherwise."""

from __future__ import annotations

import difflib
import importlib.util
import sys

import pytest

from tests.test_readme import ROOT, tokens

NAMES = ("cleanrl_style_dqn", "cleanrl_style_dqn_owl")
SMALL = [
    *("--timesteps", "400", "--learning-starts", "100", "--exploration", "200", "--buffer-size", "300"),
    *("--test-episodes", "2"),
]


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def difference():
    bare, wrapped = ((ROOT / "examples" / f"{name}.py").read_text().splitlines() for name in NAMES)
    return list(difflib.unified_diff(bare, wrapped, n=2, lineterm=""))[2:]


def test_the_difference_is_small():
    changed = [line for line in difference() if line[0] in "+-" and line[1:].strip()]
    assert sum(line[0] == "+" for line in changed) <= 7
    assert sum(line[0] == "-" for line in changed) <= 2
    removed = {line[1:].strip() for line in changed if line[0] == "-"}
    added = {line[1:].strip() for line in changed if line[0] == "+"}
    assert removed <= added, "a line of the script was changed and not only moved into a block"


def test_the_page_shows_that_difference():
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    shown = next(token.content for token in tokens(page) if token.info.strip() == "diff")
    assert shown.splitlines() == difference()


@pytest.mark.parametrize("name", NAMES)
def test_it_helps_and_runs_from_the_command_line(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as caught:
        load(name).parse_args()
    assert caught.value.code == 0
    assert "--timesteps" in capsys.readouterr().out


def test_the_first_task_is_learned_bit_for_bit_alike(capsys):
    scores = [(script := load(name)).main(script.parse_args(SMALL)) for name in NAMES]
    assert scores[0]["plain", "plain"] == scores[1]["plain", "plain"]
    assert list(scores[0]) == [("plain", "plain"), ("flipped", "plain"), ("flipped", "flipped")]
    assert "task unknown" in capsys.readouterr().out


@pytest.mark.slow
def test_the_bare_one_forgets_and_the_wrapped_one_keeps():
    bare, wrapped = ((script := load(name)).main(script.parse_args(["--seed", "2"])) for name in NAMES)
    assert bare["plain", "plain"] >= 190 > 30 > bare["flipped", "plain"]
    assert min(wrapped.values()) >= 190
