from __future__ import annotations

import pytest

from owlrl.errors import OwlValueError
from owlrl.experiments import METHODS, STUDIES, Run, StudyPlan, reproduce, study_runs
from owlrl.experiments.paper import paper_runs
from tests.experiments.helpers import tiny


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_a_study_repeats_its_runs_for_every_seed(name):
    runs = study_runs(name, seeds=3)
    assert len({run.id for run in runs}) == len(runs)
    assert {run.seed for run in runs} == {0, 1, 2}
    assert len(runs) == 3 * len(study_runs(name, seeds=1))


def test_all_methods_are_in_some_study():
    used = {run.method for name in STUDIES for run in study_runs(name, seeds=1)}
    assert used | {run.method for run in paper_runs(seeds=1)} == set(METHODS)


def test_all_methods_of_a_section_have_the_same_budget():
    for name in STUDIES:
        budgets = {}
        for run in study_runs(name, seeds=1):
            section = (run.tasks, str(run.arguments))
            budgets.setdefault(section, set()).add(
                (run.frames, str(run.frames_by_task), run.rounds, run.learner)
            )
        assert all(len(found) == 1 for found in budgets.values())


def test_headline_is_what_is_compared_with_the_paper():
    headline = {(run.tasks, run.method) for run in study_runs("headline", seeds=1)}
    assert headline == {(t, m) for t in ("SC3", "SC5") for m in ("experience-replay", "owl", "owl-memory")}
    assert all(run.frames <= 200_000 for run in study_runs("headline", seeds=1))


def test_studies_share_results():
    both = {run.id for run in study_runs("sc5", seeds=1)} & {
        run.id for run in study_runs("ablations", seeds=1)
    }
    assert len(both) == 3


def test_reproduce_does_what_is_missing_and_prints_tables(tmp_path, monkeypatch):
    monkeypatch.setitem(STUDIES, "small", StudyPlan("two", lambda seed: [tiny(seed=seed, frames=128)]))
    tables, errors = reproduce("small", tmp_path, seeds=2, progress=False)
    assert errors == []
    times = [path.stat().st_mtime_ns for path in sorted(tmp_path.iterdir())]
    assert len(times) == 2
    assert "### Crossroads-2" in tables and "| owl-memory | oracle | 2 |" in tables
    again, _ = reproduce("small", tmp_path, seeds=2, progress=False)
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.iterdir())] == times
    assert again == tables


def test_a_file_that_is_no_result_is_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setitem(STUDIES, "small", StudyPlan("one", lambda seed: [tiny(seed=seed, frames=128)]))
    (tmp_path / "shopping.jsonl").write_text('{"milk": 2}\n')
    with pytest.raises(OwlValueError, match=r"shopping\.jsonl is no result"):
        reproduce("small", tmp_path, seeds=1, progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["shopping.jsonl"]


def test_tables_have_the_order_of_the_study(tmp_path, monkeypatch):
    methods = ("owl-memory", "experience-replay")  # not that of the alphabet
    runs = lambda seed: [tiny(seed=seed, method=method, frames=128) for method in methods]  # noqa: E731
    monkeypatch.setitem(STUDIES, "small", StudyPlan("two", runs))
    tables, _ = reproduce("small", tmp_path, seeds=1, progress=False)
    assert tables.index("| owl-memory |") < tables.index("| experience-replay |")


def test_a_damaged_result_of_its_own_is_done_again(tmp_path, monkeypatch):
    monkeypatch.setitem(STUDIES, "small", StudyPlan("one", lambda seed: [tiny(seed=seed, frames=128)]))
    tables, _ = reproduce("small", tmp_path, seeds=1, progress=False)
    (path,) = tmp_path.glob("*.jsonl")
    path.write_text(path.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    again, errors = reproduce("small", tmp_path, seeds=1, progress=False)
    assert errors == [] and again.splitlines()[6] == tables.splitlines()[6]


def test_unknown_names_and_seeds(tmp_path):
    with pytest.raises(OwlValueError, match="name is 'sc4'; expected one of crossroads"):
        study_runs("sc4", seeds=1)
    with pytest.raises(OwlValueError, match="seeds is 0"):
        study_runs("sc3", seeds=0)
    assert isinstance(study_runs("sc3", seeds=1)[0], Run)
