from __future__ import annotations

import re

from owlrl.experiments import Run, Trial, markdown_tables
from owlrl.experiments.tables import result_text
from tests.experiments.helpers import (
    control_evaluation,
    evaluation,
    result,
    score,
    tiny_control,
    training,
)


def results():
    for seed in (0, 1):
        common = [training("a", 0, 10), score(10, "a", 1.0), evaluation("oracle", "a", 1.0)]
        yield result(Run("SC2", method="experience-replay", seed=seed, unseen=("S9N1:2",)), *common)
        yield result(
            Run("SC2", seed=seed, unseen=("S9N1:2",), consecutive=4),
            *common,
            score(10, "a", 0.5, "hedge+model"),
            evaluation("hedge+model", "a", 0.5),
            evaluation("random", "a", 0.25),
            evaluation("random", "b", 0.5, set="S9N1:2"),
            {"kind": "in-a-row", "policy": "random", "task": "a", "by_episode": [0.5] * 8, "failures": 1.5},
        )


def test_every_table_is_well_formed():
    text = markdown_tables(results())
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        lines = block.splitlines()
        assert len({line.count("|") for line in lines}) == 1
        assert set(lines[1]) <= set("|- ")
        assert len(lines) > 2


def test_a_row_per_method_and_policy_and_what_it_says():
    text = markdown_tables(results())
    assert text.count("### ") == 1
    assert "### SC2: 190000 frames per task\n" in text
    told = "oracle | 2 | 1.00 [1.00, 1.00] | 1.00 | 1.00 | – | – | – | – |"
    assert f"| experience-replay | {told}" in text and f"| owl-memory | {told}" in text
    # the worst seed and task, the right head, steps, regret, failures in a row
    assert (
        "| owl-memory | hedge+model | 2 | 0.50 [0.50, 0.50] | 0.50 | 0.50 | 1.00 | 2.0 | 0.50 | – |" in text
    )
    assert "| owl-memory | random | 2 | 0.25 [0.25, 0.25] | 0.25 | 0.25 | 1.00 | 2.0 | 0.75 | 1.50 |" in text
    assert "failures in 4 episodes in a row" in text
    one, half = "1.00 (1.00, 1.00)", "0.50 (0.50, 0.50)"
    assert f"| owl-memory | {one} | {one} | {one} | {half} | {half} | – | – | 0.00 | – | 1.0 |" in text
    assert "The same on 2 unseen S9N1 levels.\n" in text
    assert "| owl-memory | random | 2 | 0.50 [0.50, 0.50] | 0.50 |" in text


def test_the_worst_is_shown_and_unseen_levels_only_of_the_seeds_that_were_asked():
    rows = [[evaluation("oracle", "a", 1.0), evaluation("oracle", "b", b)] for b in (1.0, 0.25)]
    unseen = evaluation("random", "c", 0.75, set="S9N1:1")
    found = [
        result(Run("SC2", seed=0, unseen=("S9N1:1",)), *rows[0], unseen),
        result(Run("SC2", seed=1), *rows[1]),
    ]
    text = markdown_tables(found)
    assert re.search(r"\| owl-memory \| oracle \| 2 \| \S+ \[.*?\] \| 0.62 \| 0.25 \|", text)
    assert "| owl-memory | random | 1 | 0.75 | 0.75 |" in text


def test_sections_by_what_was_trained():
    runs = [
        Run("SC2"),
        Run("SC2", rounds=2, learner="paper", overrides={"n_step": 2}),
        Run("SC2", arguments={"max_steps": 9}, frames_by_task={"simplecrossing-3": 7}),
    ]
    rows = [training("a", 0, 10), score(10, "a", 1.0), evaluation("oracle", "a", 1.0)]
    titles = re.findall("^### (.*)$", markdown_tables(result(run, *rows) for run in runs), re.MULTILINE)
    assert titles == [
        "SC2: 190000 frames per task",
        "SC2: 190000 frames per task, 2 rounds, learner paper, n_step 2",
        "SC2, max_steps 9: 190000 frames per task, 7 for simplecrossing-3",
    ]


def test_forward_transfer_where_there_is_a_reference():
    run = Run("owlrl/SimpleCrossing-v0:3")
    task = "simplecrossing-3"
    rows = [training(task, 0, 10), score(5, task, 0.0), score(10, task, 1.0), evaluation("oracle", task, 1.0)]
    alone = result(run, *rows)
    assert markdown_tables([alone], reference=[alone]).count("| 0.00 | 0.00 | 1.0 |") == 1
    assert markdown_tables([alone]).count("| 0.00 | – | 1.0 |") == 1


def test_text_of_one_result():
    rows = [
        evaluation("oracle", "left", 1.0),
        evaluation("random", "left", 0.5),
        evaluation("random", "right", 0.0),
    ]
    lines = result_text(result(Run("SC2"), *rows)).splitlines()
    assert lines[0].split() == ["left", "right", "mean"]
    assert lines[1].split() == ["oracle", "1.00", "–", "1.00"]
    assert lines[2].split() == ["random", "0.50", "0.00", "0.25"]
    assert len({len(line) for line in lines}) == 1
    assert result_text(result(Run("SC2"))) == ""


def test_text_has_other_sets_and_failures_in_a_row_as_well():
    rows = [evaluation("oracle", "left", 1.0)]
    rows += [evaluation("random", f"level-{k}", k / 100, set="S9N1:51") for k in range(51)]
    rows += [
        {"kind": "in-a-row", "policy": "random", "task": "left", "by_episode": [0.5] * 4, "failures": 1.5}
    ]
    text = result_text(result(Run("SC2", consecutive=4), *rows))
    seen, unseen, failures = text.split("\n\n")
    assert seen.split() == ["left", "mean", "oracle", "1.00", "1.00"]
    assert unseen.split() == ["S9N1:51:", "mean", "random", "0.25"]  # not one column for each level
    assert failures.split()[-2:] == ["random", "1.50"]


LEFT, RIGHT = "pendulum+90", "pendulum-90"


def control_rows(told: float, found: float):
    return [
        control_evaluation("oracle", LEFT, told, 156.0),
        control_evaluation("oracle", RIGHT, told - 20.0, -156.0),
        control_evaluation("hedge+reward", LEFT, found, 150.0, identified=0.5, steps_to_identify=9.0),
        control_evaluation("hedge+reward", RIGHT, found, -150.0, identified=1.0, steps_to_identify=3.0),
    ]


def cells(text: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"
    ]


def test_returns_losses_heads_and_angles():
    results = [
        result(tiny_control(seed=seed), *control_rows(-300.0 - seed, -330.0), minutes=3.0) for seed in (0, 1)
    ]
    header, _, told, found = cells(markdown_tables(results))
    assert header[:5] == ["method", "policy", "seeds", LEFT, RIGHT]
    assert told == [
        *("owl-memory", "oracle", "2", "-300.5", "-320.5", "-310.50 [-311.00, -310.00]", "–", "–", "–"),
        *("+156°", "-156°", "3.0"),
    ]
    assert found[3:9] == ["-330.0", "-330.0", "-330.00 [-330.00, -330.00]", "6.3 %", "0.75", "6.0"]


def test_what_was_trained_alone_stands_beside_it():
    together = result(tiny_control(), *control_rows(-300.0, -330.0))
    alone = [
        result(tiny_control(tasks="owlrl/Pendulum-v0:90", method="owl-no-ewc"), control_rows(-290.0, 0.0)[0]),
        result(
            tiny_control(tasks="owlrl/Pendulum-v0:-90", method="owl-no-ewc"), control_rows(-290.0, 0.0)[1]
        ),
    ]
    (_, _, first, *_) = cells(markdown_tables([together], reference=[together, *alone]))
    assert first == [
        *("separately trained", "oracle", "1", "-290.0", "-310.0", "-300.00", "–", "–", "–"),
        *("+156°", "-156°", "2.0"),
    ]
    shorter = [Trial.of(tiny_control(tasks=r.run.tasks, frames=30), r.rows) for r in alone]
    for others in (alone[:1], shorter):
        assert "separately" not in markdown_tables([together], reference=[together, *others])
    assert "separately" not in markdown_tables(alone, reference=alone)


def test_the_angle_is_that_of_a_typical_episode():
    """No mean of 15° and 159°, and 179° is next to −179°."""
    row = control_evaluation("oracle", LEFT, -300.0, 0.0, final_angles=[15.0, 159.0, 179.0, -179.0, 178.0])
    (_, _, told) = cells(markdown_tables([result(tiny_control(tasks="owlrl/Pendulum-v0:90"), row)]))
    assert told[-2] == "+178°"


def test_plain_text_of_returns():
    text = result_text(result(tiny_control(), *control_rows(-300.0, -330.0)))
    assert text.splitlines()[1].split() == ["oracle", "-300.00", "-320.00", "-310.00"]
