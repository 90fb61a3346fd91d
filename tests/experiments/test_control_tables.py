"""Tables of returns: rows per method and way to act, and what was trained alone."""

from __future__ import annotations

from owlrl.experiments import markdown_tables
from owlrl.experiments.tables import result_text

from .helpers import control_evaluation, result, tiny_control

LEFT, RIGHT = "pendulum+90", "pendulum-90"


def rows(told: float, found: float):
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
    results = [result(tiny_control(seed=seed), *rows(-300.0 - seed, -330.0), minutes=3.0) for seed in (0, 1)]
    header, _, told, found = cells(markdown_tables(results))
    assert header[:5] == ["method", "policy", "seeds", LEFT, RIGHT]
    assert told == [
        *("owl-memory", "oracle", "2", "-300.5", "-320.5", "-310.50 [-311.00, -310.00]", "–", "–", "–"),
        *("+156°", "-156°", "3.0"),
    ]
    assert found[3:9] == ["-330.0", "-330.0", "-330.00 [-330.00, -330.00]", "6.3 %", "0.75", "6.0"]


def test_what_was_trained_alone_stands_beside_it():
    together = result(tiny_control(), *rows(-300.0, -330.0))
    alone = [
        result(tiny_control(tasks="owlrl/Pendulum-v0:90", method="owl-no-ewc"), rows(-290.0, 0.0)[0]),
        result(tiny_control(tasks="owlrl/Pendulum-v0:-90", method="owl-no-ewc"), rows(-290.0, 0.0)[1]),
    ]
    (_, _, first, *_) = cells(markdown_tables([together], reference=[together, *alone]))
    assert first == [
        *("separately trained", "oracle", "1", "-290.0", "-310.0", "-300.00", "–", "–", "–"),
        *("+156°", "-156°", "2.0"),
    ]
    shorter = [result(tiny_control(tasks=r.run.tasks, frames=30), *r.rows) for r in alone]
    for others in (alone[:1], shorter):
        assert "separately" not in markdown_tables([together], reference=[together, *others])
    assert "separately" not in markdown_tables(alone, reference=alone)


def test_the_angle_is_that_of_a_typical_episode():
    """No mean of 15° and 159°, and 179° is next to −179°."""
    row = control_evaluation("oracle", LEFT, -300.0, 0.0, final_angles=[15.0, 159.0, 179.0, -179.0, 178.0])
    (_, _, told) = cells(markdown_tables([result(tiny_control(tasks="owlrl/Pendulum-v0:90"), row)]))
    assert told[-2] == "+178°"


def test_plain_text():
    text = result_text(result(tiny_control(), *rows(-300.0, -330.0)))
    assert text.splitlines()[1].split() == ["oracle", "-300.00", "-320.00", "-310.00"]
