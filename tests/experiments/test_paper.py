"""The paper's tables: numbers read as they are printed, runs at its settings, verdicts by the rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from owlrl.experiments import METHODS, Run, Trial
from owlrl.experiments.config import recipe_of
from owlrl.experiments.paper import (
    PaperRow,
    paper_rows,
    paper_runs,
    paper_strengths,
    paper_tables,
    parts,
    pendulum_table,
    strength_table,
    verdict,
)
from owlrl.experiments.results import Quartiles


def row(tasks: str, name: str) -> PaperRow:
    (found,) = (row for row in paper_rows() if row.tasks == tasks and row.name == name)
    return found


def result(run: Run, mode: str, *scores: float, over_training: float | None = None) -> Trial:
    """A trial of a run with one success per task."""
    rows = [
        {"kind": "score", "visit": 0, "mode": mode, "task": task, "success": score}
        for task, score in zip(run.specs, scores, strict=True)
    ]
    if over_training is not None:
        first = {"visit": 0, "task": next(iter(run.specs))}
        rows.append({"kind": "curve", "step": 5, "mode": mode, "success": 2 * over_training - 1.0, **first})
        rows.append({"kind": "training", "steps": 9, **first})
    return Trial.of(run, rows)


def line_of(tables: str, *starts: str) -> list[str]:
    (found,) = (line for line in tables.splitlines() if line.startswith("| " + " | ".join(starts)))
    return [cell.strip() for cell in found.strip("|").split("|")]


def test_numbers_are_those_of_the_paper():
    owl = row("SC3", "OWL + WS")
    assert owl.given == (Quartiles(1.0, 1.0, 1.0), Quartiles(0.95, 0.97, 0.89))
    assert owl.unknown == (Quartiles(0.99, 1.0, 0.83), Quartiles(0.79, 0.91, 0.73))
    assert row("SC5", "Exp Replay").given == (Quartiles(0.01, 0.61, 0.0),)
    assert row("SC5", "Exp Replay").unknown == ()
    for found in paper_rows():  # the median is between the quartiles, all are shares
        for cell in (*found.given, *found.unknown):
            assert 0 <= cell.lower <= cell.median <= cell.upper <= 1
        assert len(found.given) in (1, 2) and len(found.unknown) in (0, len(found.given))


def test_runs_have_the_paper_s_settings_and_length():
    run = row("SC3", "OWL").runs()["paper"]
    assert (run.learner, run.frames, run.rounds, run.strength, run.compile) == (
        "paper",
        1_000_000,
        3,
        500.0,
        True,
    )
    assert run.config.batch_size == 32 and run.config.buffer_size == 1_000_000
    assert row("SC5", "OWL").runs()["paper"].frames == 750_000
    assert recipe_of(row("SC2", "OWL warm start 100k").method).warm_start == 100_000
    assert row("SC2", "OWL WS, dropout 0.1").runs() == {}  # there is no such method here
    assert {found.method for found in paper_rows()} - {""} <= set(METHODS)
    # at our settings a pass is one visit, so that nothing is refilled; and other strengths are right
    assert set(row("SC3", "OWL + WS").runs()) == {"paper"} == set(row("SC2", "OWL, λ = 200").runs())
    every = row("SC2", "OWL, λ = 500, 1:1").runs()
    assert set(every) == {"paper"} and every["paper"].config.update_every == 1
    runs = paper_runs(seeds=2)
    together, alone = (next(r for r in runs if r.control and len(r.specs) == n) for n in (2, 1))
    assert (together.frames, together.rounds, alone.frames, together.sac.critic_hidden) == (
        20_000,
        3,
        60_000,
        (200,) * 4,
    )
    assert len({run.id for run in runs}) == len(runs) and {run.seed for run in runs} == {0, 1}
    assert {run.frames for run in paper_runs(seeds=1, frames=50)} == {50}


@pytest.mark.parametrize(
    ("lower", "upper", "said"),
    [
        (0.7, 0.9, "holds"),
        (0.85, 0.85, "holds"),
        (0.854, 0.9, "holds"),
        (0.86, 0.9, "better"),
        (0.1, 0.84, "worse"),
    ],
)
def test_the_verdict_is_by_the_rule(lower, upper, said):
    assert verdict(Quartiles((lower + upper) / 2, upper, lower), 0.85) == said


def test_cells_have_the_numbers_of_the_results():
    owl = row("SC3", "OWL")
    runs = [replace(owl.runs()["paper"], seed=seed) for seed in range(3)]
    results = [result(run, "oracle", 1.0, 1.0, 1.0, over_training=0.5) for run in runs]
    ours = replace(owl.runs()["owlrl"], seed=5)
    tables = paper_tables([*results, result(ours, "hedge+model", 0.0, 0.0, 0.3)])
    assert tables.startswith(
        "Of 80 cells 2 were run at the paper's settings (1 holds, 0 better, 1 worse) and 0 at"
    )
    _, _, paper, its, fast, owlrl = line_of(tables, "OWL", "given, final", "1.00")
    assert (paper, its, fast) == ("1.00 (1.00, 1.00)", "1.00 (1.00, 1.00), 3 seeds: *holds*", "not run")
    assert owlrl == "not run"
    assert line_of(tables, "OWL", "given, over training")[3] == "0.50 (0.50, 0.50), 3 seeds: *worse*"
    assert line_of(tables, "OWL", "unknown, final", "0.86")[5] == "0.10 (0.10, 0.10), 1 seed: *(worse)*"
    assert line_of(tables, "OWL WS, dropout 0.1", "given, final")[3:] == ["not run", "–", "–"]
    assert line_of(tables, "OWL + WS", "given, final")[3:] == ["not run", "–", "–"]


def test_what_is_there_once_more_is_shown_when_it_was_run_and_not_counted():
    loss = row("SC2", "OWL, λ = 500, loss")
    assert loss.method == "owl-loss" and loss.strength == 500
    assert "Eq. 2" not in paper_tables([]) and ", loss" not in paper_tables([])
    tables = paper_tables([result(loss.runs()["paper"], "oracle", 1.0, 0.0)])
    assert tables.startswith("Of 80 cells 0 were run")
    assert line_of(tables, "OWL, λ = 500, loss", "given, final")[3] == "0.50 (0.50, 0.50), 1 seed: *(worse)*"
    written = paper_tables([result(row("SC2", "OWL, λ = 500").runs()["paper"], "paper+td-squared", 1.0, 1.0)])
    assert line_of(written, "OWL, λ = 500", "unknown, Eq. 2")[3] == "1.00 (1.00, 1.00), 1 seed: *(holds)*"


def test_strengths_of_distillation_are_run_on_two_crossings_as_owl_is():
    (owl,) = (run for run in paper_runs(seeds=1) if run == row("SC2", "OWL, λ = 500").runs()["paper"])
    distilled = [run for run in paper_runs(seeds=2) if run.tasks == "SC2" and run.method.endswith("current")]
    assert distilled == [
        replace(owl, method="owl-distill-current", strength=mu, seed=seed)
        for seed in (0, 1)
        for mu in (0.1, 1.0, 10.0, 100.0)
    ]
    assert distilled[3].id == "sc2-owl-distill-current-s0-0cf78988"  # the name of a file of results
    assert len({strength.run.id for strength in paper_strengths()}) == 8 + 4
    assert {strength.run.id for strength in paper_strengths()} <= {run.id for run in paper_runs(seeds=1)}


def test_strengths_have_the_numbers_of_the_results():
    bare = strength_table([]).splitlines()
    assert len(bare) == 2 + 12 and all(line.count("not run") == 4 for line in bare[2:])
    (weak,) = (found.run for found in paper_strengths() if found.strength == "μ = 0.1")
    once, summed = (row("SC2", f"OWL, λ = 500, {name}").runs()["paper"] for name in ("1:1", "sum"))
    results = [
        *(result(replace(weak, seed=seed), "oracle", 1.0, 0.5, over_training=0.25) for seed in range(2)),
        result(once, "released+td-raw", 0.5, 0.5),
        result(replace(summed, frames=50), "oracle", 1.0, 1.0),  # of another length, so it does not count
    ]
    table = strength_table(results)
    found = line_of(table, "distillation on current states", "μ = 0.1")
    assert found[2:] == ["1:4", "2", "0.75 (0.75, 0.75)", "0.25 (0.25, 0.25)", "–", "–"]
    found = line_of(table, "EWC, importance from Q-values", "λ = 500", "1:1")
    assert found[3:6] == ["1", "–", "–"] and found[6].startswith("0.50")
    assert line_of(table, "EWC, importance from the loss, summed", "λ = 500")[3] == "–"


def swung(run: Run, mode: str, *returns: float, found: float | None = None) -> Trial:
    rows = [
        {"kind": "score", "visit": 0, "mode": mode, "task": task, "mean_return": value, "found": found}
        for task, value in zip(run.specs, returns, strict=True)
    ]
    return Trial.of(run, rows)


def test_pendulums_are_those_of_the_paper_s_length_and_by_task():
    bare = pendulum_table([]).splitlines()
    assert len(bare) == 2 + 8 and all(line.count("not run") == 2 for line in bare[2:])
    owl, replay, first, second = (
        next(
            run for run in paper_runs(seeds=1) if run.control and run.method == method and tasks in run.tasks
        )
        for method, tasks in (
            ("owl", "90,-90"),
            ("experience-replay", ""),
            ("owl-no-ewc", "0:90"),
            ("owl-no-ewc", ":-90"),
        )
    )
    results = [
        *(swung(replace(second, seed=seed), "oracle", -360.0 - seed) for seed in range(3)),
        *(swung(replace(owl, seed=seed), "paper+nll-raw", -500.0, -400.0, found=seed / 2) for seed in (0, 1)),
        swung(replace(replay, frames=5_000), "oracle", -1.0, -1.0),  # shorter, so not of the paper
    ]
    table = pendulum_table(results)
    assert line_of(table, "separate SACs, task given")[1:] == ["3", "not run", "-361 (-360, -362)", "–"]
    found = line_of(table, "OWL, likelihood, Eq. 2")
    assert found[1:] == ["2", "-500 (-500, -500)", "-400 (-400, -400)", "0.25"]
    assert line_of(table, "Exp Replay")[1:] == ["–", "not run", "not run", "–"]
    both = pendulum_table([*results, swung(first, "oracle", -340.0)])
    assert line_of(both, "separate SACs, task given")[1:3] == ["1/3", "-340 (-340, -340)"]


def test_its_part_has_all_runs_and_shows_the_tables(tmp_path):
    (part,) = parts(seeds=1, methods=("experience-replay",))
    runs = [work.trial.run for work in part.work]
    assert [run.tasks for run in runs] == ["SC2", "SC3", "SC5", "SC3+DK2", "owlrl/Pendulum-v0:90,-90"]
    result(runs[0], "oracle", 0.0, 0.0).write(tmp_path)
    told = part.show([], [], tmp_path)
    assert line_of(told, "Exp Replay", "given, final", "0.00 (0.09")[3].endswith("*(holds)*")
    assert strength_table([]) in told
