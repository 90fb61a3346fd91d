"""Numbers of a study against values worked out by hand, and what tables, files and pictures show of them."""

from __future__ import annotations

import csv
import inspect
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from owlrl.errors import OwlStateError, OwlValueError
from owlrl.experiments import Study, Trial, iqm, stratified_bootstrap

SETTINGS = {
    "tasks": ["left", "right"],
    "steps": {"left": 100, "right": 200},
    "rounds": 1,
    "eval_every": 50,
    "eval_episodes": 4,
}


def trial(method, seed, after, *, unknown=None, curve=None, modes=None, found=None):
    """``after`` (visits, tasks): scores after each task, None where there is none."""
    rows = []
    for visit, task in enumerate(SETTINGS["tasks"]):
        rows.append({"kind": "training", "visit": visit, "round": 0, "task": task, "seconds": 2.0 + seed})
        tables = {(modes or ("unknown",))[0]: after} | ({"unknown": unknown} if unknown else {})
        for mode, scores in tables.items():
            for name, score in zip(SETTINGS["tasks"], scores[visit], strict=True):
                if score is not None:
                    row = {"kind": "score", "visit": visit, "task": name, "mode": mode, "mean_return": score}
                    sought = found if mode == "unknown" else None
                    rows.append({**row, "returns": [score] * 4, "found": sought, "steps": sought})
        for step, score in (curve or {}).get(task, ()):
            rows.append({"kind": "curve", "visit": visit, "task": task, "step": step, "mean_return": score})
    return Trial(
        method, seed, SETTINGS, "x", f"about {method}", modes or ("unknown",), rows, {"started": seed}
    )


def reference(seed):
    made = trial("random actions", seed, [[0.0, 1.0]] * 2)
    untrained = [{**row, "mode": "untrained"} for row in made.rows if row["kind"] == "score"]
    return Trial(
        "random actions", seed, SETTINGS, "x", "", ("unknown", "untrained"), [*made.rows, *untrained]
    )


def whole() -> Study:
    bare = [trial("bare", s, [[10.0 + s, 1.0], [4.0, 11.0]], curve=CURVES) for s in range(3)]
    alone = [trial("alone", s, [[10.0, None], [10.0, 11.0]], curve=ALONE, modes=("given",)) for s in range(3)]
    owl = [
        trial(
            "owl, mine_1",
            s,
            [[10.0, None], [9.0, 11.0]],
            unknown=[[8.0, 0.0], [8.0, 3.0]],
            modes=("given", "unknown"),
            found=0.5,
        )
        for s in range(3)
    ]
    return Study([*bare, *alone, *owl, *map(reference, range(3))], errors=[("bare", 3, "no luck")])


# normalised by hand: left (score − 0) / 10, right (score − 1) / 10
ALONE = {"left": [(50, 0.0), (100, 10.0)], "right": [(50, 1.0), (200, 11.0)]}  # AUC 0.5 and 0.5
CURVES = {"left": [(50, 5.0), (100, 10.0)], "right": [(50, 1.0), (200, 6.0)]}  # AUC 0.75 and 0.25


def test_scores_and_matrix():
    study = whole()
    assert study.methods == ["bare", "alone", "owl, mine_1"] and study.tasks == ["left", "right"]
    assert study.scores("bare").tolist() == [[4.0, 11.0]] * 3
    assert study.scores("bare", when="right after").tolist() == [[10.0 + s, 11.0] for s in range(3)]
    assert study.scores("owl, mine_1", mode="unknown").tolist() == [[8.0, 3.0]] * 3
    np.testing.assert_array_equal(study.matrix("owl, mine_1"), [[10.0, np.nan], [9.0, 11.0]])
    with pytest.raises(OwlValueError, match="method is 'none'; expected one of bare"):
        study.scores("none")
    for ask in (study.scores, study.after_each):
        with pytest.raises(OwlValueError, match="mode is 'given'; expected one of unknown for 'bare'"):
            ask("bare", mode="given")
    with pytest.raises(OwlValueError, match="when is 'last'; expected 'right after' or 'final'"):
        study.scores("bare", when="last")


def test_forgetting_transfer_and_estimates():
    study = whole()
    assert study.forgetting("bare") == pytest.approx(np.mean([(10 + s - 4) / 2 for s in range(3)]))
    assert study.forgetting("owl, mine_1") == pytest.approx(0.5)
    # (0.75 − 0.5) / (1 − 0.5) and (0.25 − 0.5) / (1 − 0.5)
    assert study.forward_transfer("bare") == pytest.approx((0.5 - 0.5) / 2)
    assert study.forward_transfer("owl, mine_1") is None  # it was not watched
    after = study.scores("bare", when="right after")
    estimate = study.estimate("bare", when="right after")
    assert estimate.value == pytest.approx(float(iqm(after.mean(axis=1))))
    assert estimate.interval == stratified_bootstrap(after)
    assert study.found("owl, mine_1") == study.steps_to_find("owl, mine_1") == 0.5
    assert study.seconds("bare") == pytest.approx(np.mean([2 * (2 + s) for s in range(3)]))


def test_rliable_shape():
    found = whole().to_rliable()
    assert set(found) == {"bare", "alone", "owl, mine_1, task given", "owl, mine_1, task unknown"}
    assert {scores.shape for scores in found.values()} == {(3, 2)}


def test_verdicts():
    said = {(v.method, v.task): v for v in whole().verdicts()}
    assert (
        said["bare", "left"].cause == "forgotten" and "11.00 right after it, 4.00" in said["bare", "left"].why
    )
    assert said["bare", "right"].cause == "fine"
    assert said["owl, mine_1", "left"].cause == "fine"
    last = said["owl, mine_1", "right"]
    assert last.cause == "not recognised" and "found in 50 % of episodes, after 0.5 steps" in last.why
    slow = Study([*whole().trials, *(trial("slow", s, [[3.0, 1.0], [3.0, 11.0]]) for s in range(2))])
    said = {v.task: v.cause for v in slow.verdicts() if v.method == "slow"}
    assert said == {"left": "not learned in the sequence", "right": "fine"}


def test_the_guide_says_what_to_try_for_each_verdict_and_no_other():
    given = re.findall(r'return Verdict\(method, task, "([^"]+)"', inspect.getsource(Study))
    page = (Path(__file__).parents[2] / "docs" / "choose-and-tune.md").read_text(encoding="utf-8")
    assert len(given) == 5
    assert re.findall(r"^### `(.+)`$", page, re.MULTILINE) == given


@pytest.mark.parametrize(("scores", "learned"), [((300.0, 90.0), 2), ((300.0, 1.0), 1), ((1.0, 0.5), 0)])
def test_seeds_that_learn_unequally_well_have_learned(scores, learned):
    """300 and 90 against 1 by chance: the spread of the seeds is not held against them."""
    own = [trial("alone", s, [[x, None], [x, 11.0]], modes=("given",)) for s, x in enumerate(scores)]
    noisy = [reference(s) for s in range(2)]
    for made in noisy:
        for row in made.rows:
            if row["kind"] == "score":
                row["returns"], row["mean_return"] = [0.0, 2.0, 0.0, 2.0], 1.0
    study = Study([*own, *noisy])
    assert sum(study.learned_in("alone", "left")) == learned
    verdict = study.verdicts()[0]
    assert verdict.cause == ("fine" if learned else "the learner did not learn it")


def test_a_reference_below_random_actions_has_not_learned():
    """One of two seeds learns, and the mean of both is below random actions."""
    own = [
        trial(name, s, [[x, None], [x, 11.0]], modes=("given",))
        for name in ("alone", "mine")
        for s, x in enumerate((10.0, -20.0))
    ]
    said = Study([*own, *map(reference, range(2))]).verdicts()
    for verdict in (each for each in said if each.task == "left"):
        assert verdict.cause == "the learner did not learn it"
        assert verdict.why.endswith("learned in 1 of 2 seeds")


def test_other_sets_and_successes_are_shown():
    settings = {**SETTINGS, "measure": "success", "unseen": {"far": ["up"]}}
    made = [replace(each, settings=settings) for each in whole().trials]
    for each in made:
        each.rows.extend(
            {"kind": "score", "visit": 1, "set": "far", "task": "up", "mode": mode, "mean_return": 7.0}
            for mode in each.modes
        )
        for row in each.rows:
            if row["kind"] in ("score", "curve"):
                row["success"] = 0.25 if row.get("set") else 0.5
    study = Study(made)
    assert study.table().startswith("Shares of episodes with success")
    (line,) = (line for line in study.notes() if "never trained" in line)
    assert line.startswith("far, never trained: random actions 0.25; bare 0.25; alone 0.25")
    rows = list(csv.DictReader(io.StringIO(study.to_csv())))
    assert {(row["set"], row["success"]) for row in rows} == {("", "0.5"), ("far", "0.25")}
    plain = next(csv.DictReader(io.StringIO(whole().to_csv())))
    assert "set" not in plain and "success" not in plain


def test_a_task_that_is_never_found_has_no_steps():
    own = [
        trial(
            "mine",
            s,
            [[10.0, None], [10.0, 11.0]],
            unknown=[[0.0, 0.0]] * 2,
            modes=("given", "unknown"),
            found=0,
        )
        for s in range(2)
    ]
    said = Study([*own, *map(reference, range(2))]).verdicts()[0]
    assert said.cause == "not recognised" and said.why.endswith("found in 0 % of episodes")


def test_a_seed_whose_untrained_model_is_lucky_has_learned():
    """What is untrained scores 10 in one of two seeds, 5 on average: both seeds, with 10, have learned."""
    own = [trial("alone", s, [[10.0, None], [10.0, 11.0]], modes=("given",)) for s in range(2)]
    references = [reference(s) for s in range(2)]
    for row in references[0].select("score", mode="untrained", task="left"):
        row["returns"] = [10.0] * 4
    study = Study([*own, *references])
    assert study.learned_in("alone", "left") == [True, True]


def test_a_task_counts_as_learned_from_the_return_that_solves_it():
    study = Study(whole().trials, solved={"left": 500.0})
    said = {(v.method, v.task): v for v in study.verdicts()}
    assert said["alone", "left"].cause == "the learner did not learn it"
    assert "500.0 would solve it" in said["alone", "left"].why
    assert said["alone", "right"].cause == "fine"


def test_tables_and_files(tmp_path):
    study = whole()
    lines = [line for line in study.table().splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[:2] for line in lines[2:]] == [
        ["| random actions", "unknown"],
        ["| bare", "unknown"],
        ["| alone", "given"],
        ["| owl, mine_1", "given"],
        ["| owl, mine_1", "unknown"],
    ]
    assert "100 to 200 steps per task" in study.table()
    assert "bare, seed 3 failed: no luck" in study.notes()
    text = study.to_csv(tmp_path / "new" / "study.csv")
    assert (tmp_path / "new" / "study.csv").read_text(encoding="utf-8") == text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == sum(len(t.select("score")) for t in study.trials)
    assert rows[0] | {"mean_return": "10.0"} == rows[0] and rows[0]["after"] == "left"
    latex = study.to_latex(tmp_path / "study.tex")
    assert r"owl, mine\_1 & given" in latex and latex.count(r"\\") == len(lines) - 1
    assert (tmp_path / "study.tex").read_text(encoding="utf-8") == latex


def test_report_is_one_page_and_pictures_have_a_panel_per_task(tmp_path):
    study = whole()
    page = study.report(tmp_path / "new" / "study.html").read_text(encoding="utf-8")
    assert page.count("<img") == 1 and "http" not in page.replace("http-equiv", "")
    assert "owl, mine_1, right: not recognised" in page
    assert [axes.get_title() for axes in study.figure().axes] == ["left", "right"]
    one = Study([t for t in study.trials if t.seed == 0])
    assert len(one.figure().axes) == 2


def test_files_are_read_again(tmp_path):
    study = whole()
    for each in study.trials:
        each.write(tmp_path)
    (tmp_path / "other.jsonl").write_text("{}\n", encoding="utf-8")
    older = {**SETTINGS, "rounds": 2}
    Trial("bare", 0, older, info={"started": -1.0}).write(tmp_path)
    again = Study.load(tmp_path)
    assert sorted(again.methods) == sorted(study.methods)
    np.testing.assert_array_equal(again.scores("bare"), study.scores("bare"))
    with pytest.raises(OwlValueError, match="has no results of compare"):
        Study.load(tmp_path / "nowhere")
    with pytest.raises(OwlValueError, match="is no result"):
        Trial.read(tmp_path / "other.jsonl")


def test_what_is_no_study():
    with pytest.raises(OwlStateError, match="there are no trials"):
        Study([])
    with pytest.raises(OwlValueError, match="different settings"):
        Study([Trial("a", 0, {"tasks": []}), Trial("a", 0, {"tasks": ["x"]})])
    with pytest.raises(OwlStateError, match="no trial of random actions"):
        Study([t for t in whole().trials if t.method != "random actions"]).verdicts()
