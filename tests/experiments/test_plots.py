"""The paper's remaining pictures: what is drawn is what the rows say."""

from __future__ import annotations

import io

import numpy as np
import pytest

from owlrl.errors import OwlError, OwlValueError
from owlrl.experiments import (
    Run,
    Trial,
    arm_positions,
    completions,
    head_errors,
    head_probabilities,
    learning_curves,
)
from owlrl.experiments import _optional as optional_module
from owlrl.experiments.plots import COLOURS, colour, dashes, hatch, label, outcome, short, thousands
from tests.experiments.helpers import result, score, training

TWELVE = [f"simplecrossing-{k}" for k in range(12)]
STRANGE = ["<b>a</b>", "_$x$", "a\\b", "long" * 30]


def png(figure) -> bytes:
    """Drawing it is what finds most faults; warnings are errors here."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=40)
    return file.getvalue()


def run_of(tasks, scores, *, seed=0, method="owl-memory", policies=("oracle",)):
    """Every task trained for ten frames; at the end of each, all seen so far have the same score."""
    rows = []
    for k, task in enumerate(tasks):
        rows.append(training(task, 10 * k, 10 * k + 10))
        rows += [score(10 * k + 10, seen, scores, policy) for seen in tasks[: k + 1] for policy in policies]
    return result(Run("SC2", seed=seed, method=method), *rows)


def test_mean_and_spread_over_seeds():
    figure = learning_curves(
        [run_of(["a"], number, seed=seed) for seed, number in enumerate((0.0, 1.0, 1.0, 1.0))]
    )
    (axes,) = figure.axes
    (line,) = axes.get_lines()
    assert line.get_xydata().tolist() == [[10.0, 0.75]]
    (shade,) = axes.collections
    low, high = shade.get_paths()[0].vertices[:, 1].min(), shade.get_paths()[0].vertices[:, 1].max()
    assert low == pytest.approx(0.75 - np.std([0, 1, 1, 1])) and high == 1.0  # no further than the best seed


def test_one_seed_has_no_shade_and_the_key_does_not_speak_of_it():
    figure = learning_curves([run_of(["a", "b"], 1.0)])
    assert not any(axes.collections for axes in figure.axes)
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["task given", "the task of that colour is in training"]


def test_a_row_per_task_and_a_column_per_method():
    results = [
        run_of(["a", "b"], 1.0, method=method, seed=s) for method in ("owl", "owl-memory") for s in (0, 1)
    ]
    figure = learning_curves(results)
    assert [axes.get_title() for axes in figure.axes] == ["owl\n2 seeds", "owl-memory\n2 seeds", "", ""]
    assert [axes.get_ylabel() for axes in figure.axes] == ["a", "", "b", ""]
    bands = [patch for patch in figure.axes[0].patches]
    assert [(band.get_x(), band.get_width()) for band in bands] == [(0, 10), (10, 10)]
    assert [band.get_facecolor()[:3] for band in bands] == [
        tuple(int(colour(k)[i : i + 2], 16) / 255 for i in (1, 3, 5)) for k in (0, 1)
    ]


def test_policies_that_are_not_told_are_marks():
    figure = learning_curves([run_of(["a", "b"], 0.5, policies=("oracle", "hedge+td", "random"))])
    line, hedge, random = figure.axes[0].get_lines()
    assert line.get_marker() == "" and hedge.get_linestyle() == "None" == random.get_linestyle()
    assert (hedge.get_xdata() < random.get_xdata()).all()  # beside each other
    assert random.get_xdata().tolist() == [10, 20]


def test_a_reference_is_a_dashed_line_in_the_panels_of_its_task():
    runs = [run_of(["a", "b"], 1.0), run_of(["a", "b"], 1.0, method="owl")]
    figure = learning_curves(runs, reference={"b": 0.25})
    levels = [[line for line in axes.get_lines() if line.get_ydata()[0] == 0.25] for axes in figure.axes]
    assert [len(lines) for lines in levels] == [0, 0, 1, 1]  # two columns for each of two tasks
    assert "reference" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert "reference" not in [text.get_text() for text in learning_curves(runs).legends[0].get_texts()]
    with pytest.raises(OwlValueError, match="reference has c; expected some of a, b"):
        learning_curves(runs, reference={"c": 0.0})


def test_returns_are_no_shares():
    figure = learning_curves([run_of(["a", "b"], -300.0)])
    assert figure.get_supylabel() == "mean return"
    low, high = figure.axes[0].get_ylim()
    assert low < -300 < high < 0
    assert learning_curves([run_of(["a"], 1.0)]).get_supylabel() == "share of episodes solved"


@pytest.mark.parametrize(("tasks", "seeds"), [(["only"], 1), (STRANGE, 2), (TWELVE, 3)])
def test_curves_can_be_drawn(tasks, seeds):
    results = [run_of(tasks, 0.5, seed=seed, policies=("oracle", "hedge+td")) for seed in range(seeds)]
    assert png(learning_curves(results)).startswith(b"\x89PNG")


def test_what_a_method_was_not_asked_is_left_out():
    tasks = ["a", "b"]
    told, asked = run_of(tasks, 1.0), run_of(tasks, 1.0, method="owl", policies=("oracle", "hedge+td"))
    never = result(Run("SC2", method="owl-loss"), training("a", 0, 10), training("b", 10, 20))
    figure = learning_curves([told, asked, never])
    assert [len(axes.get_lines()) for axes in figure.axes] == [1, 2, 0] * 2
    assert png(figure)


@pytest.mark.parametrize(("frames", "text"), [(0, "0"), (300, "300"), (2_500, "2.5k"), (1_500_000, "1.5M")])
def test_large_numbers_are_short(frames, text):
    assert thousands(frames) == text


def test_other_tasks_are_another_picture():
    with pytest.raises(OwlValueError, match=r"\['a'\] and \['b'\]; expected results of one sequence"):
        learning_curves([run_of(["a"], 1.0), run_of(["b"], 1.0, seed=1)])
    with pytest.raises(OwlValueError, match="are none; expected results of one sequence"):
        learning_curves([])
    with pytest.raises(OwlValueError, match=r"are \[\]; expected"):
        learning_curves([result(Run("SC2"))])


def trace(heads, steps, seed=0):
    random = np.random.default_rng(seed)
    return {
        "task": heads[-1],
        "mode": "hedge+td",
        "heads": heads,
        "success": False,
        "arms": random.integers(len(heads), size=steps).tolist(),
        "probabilities": random.dirichlet(np.ones(len(heads)), steps).tolist(),
        "losses": random.random((steps, len(heads))).tolist(),
    }


def test_what_the_picture_of_an_episode_says():
    row = trace(["a", "b", "c"], 7)
    acting, upper, lower = head_probabilities(row).axes
    assert acting.get_title(loc="left") == "hedge+td in c: not solved in 7 steps"
    shown = np.array([line.get_ydata()[:-1] for line in upper.get_lines()]).T
    assert np.array_equal(shown, row["probabilities"])
    total = np.cumsum(row["losses"], axis=0)
    excess = np.array([line.get_ydata()[:-1] for line in lower.get_lines()]).T
    assert np.allclose(excess, total - total.min(axis=1, keepdims=True))
    width = np.array([[bar.get_x(), bar.get_width()] for bar in acting.patches])
    assert width[:, 1].sum() == 7 and len(width) == 1 + np.count_nonzero(np.diff(row["arms"]))


def test_the_right_head_stands_out():
    legend = head_probabilities(trace(["a", "b"], 3)).legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b (right)"]
    assert [text.get_fontweight() for text in legend.get_texts()] == ["normal", "bold"]


@pytest.mark.parametrize(("heads", "steps"), [(["only"], 1), (STRANGE, 3), (TWELVE, 324)])
def test_episodes_can_be_drawn(heads, steps):
    assert png(head_probabilities(trace(heads, steps))).startswith(b"\x89PNG")


def test_bad_traces_are_refused_at_once():
    row = {**trace(["a", "b"], 3), "losses": [[0.0]], "probabilities": [[1.0, 0.0]]}
    with pytest.raises(
        OwlValueError, match=r"2 problems(.|\n)*losses have shape \(1, 1\); expected \(3, 2\)"
    ):
        head_probabilities(row)
    with pytest.raises(OwlValueError, match=r"arms have shape \(0,\)"):
        head_probabilities({**row, "arms": []})


def test_outcome():
    assert outcome({"arms": [0], "success": True}) == "solved in 1 step"
    assert outcome({"arms": [0, 1], "success": None}) == "2 steps"


def test_twelve_heads_can_be_told_apart():
    looks = {(colour(k), str(dashes(k)), hatch(k)) for k in range(3 * len(COLOURS))}
    assert len(looks) == 3 * len(COLOURS)
    assert colour(0) != colour(1) and len({(colour(k), str(dashes(k))) for k in range(12)}) == 12


def test_labels_are_shown_as_they_are():
    assert label("a$b") == r"a\$b"
    assert label("_a") == " _a"
    assert short("simplecrossing-14", most=9) == "simp…g-14"
    assert all(len(short("x" * 50, most=most)) == most for most in range(3, 50))


def test_without_matplotlib(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(optional_module.importlib, "import_module", missing)
    with pytest.raises(OwlError, match=r"learning_curves needs matplotlib.*pip install .matplotlib"):
        learning_curves([run_of(["a"], 1.0)])


def checks(method: str, seed: int, scores: dict[str, list[float]]) -> Trial:
    rows = [{"kind": "training", "visit": 0, "task": "a", "steps": 40}]
    rows += [
        {"kind": "curve", "visit": 0, "step": 10 * (k + 1), "task": task, "mode": "oracle", "success": score}
        for task, of_task in scores.items()
        for k, score in enumerate(of_task)
    ]
    return Trial.of(Run("SC2", method=method, seed=seed), rows)


def test_completions_are_sums_of_solved_checks_with_quartiles():
    results = [checks("owl", seed, {"a": [1, seed, 1], "b": [0, 0, 0]}) for seed in (0, 1)]
    figure = completions([*results, checks("experience-replay", 0, {"a": [0, 0, 1], "b": [1, 1, 1]})])
    first, second = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["a", "b"]
    lines = {line.get_label(): line for line in first.get_lines()}
    assert np.allclose(lines["owl"].get_xdata(), [10, 20, 30])
    assert np.allclose(lines["owl"].get_ydata(), [1, 1.5, 2.5])  # the median of two seeds
    assert np.allclose(second.get_lines()[0].get_ydata(), 0)
    assert np.allclose(second.get_lines()[1].get_ydata(), [1, 2, 3])
    with pytest.raises(OwlValueError, match="no trial has checks with 'hedge'"):
        completions(results, mode="hedge")


def test_errors_of_heads_are_drawn_per_episode_and_the_right_head_is_bold():
    seen = {"task": "a", "mode": "hedge+td", "heads": ["a", "b"], "losses": [[0.1, 2.0], [0.2, 3.0]]}
    figure = head_errors([seen, {**seen, "task": "elsewhere"}])
    known, unknown = figure.axes
    assert known.get_title() == "a: seen" and unknown.get_title() == "elsewhere: not seen"
    assert np.allclose([line.get_ydata() for line in known.get_lines()], np.transpose(seen["losses"]))
    widths = [line.get_linewidth() for line in known.get_lines()]
    assert widths[0] > widths[1] == unknown.get_lines()[0].get_linewidth()
    with pytest.raises(OwlValueError, match="no traces"):
        head_errors([])


def pendulums(method, angles, seed=0):
    run = Run("owlrl/Pendulum-v0:90,-90", method=method, seed=seed, num_envs=4)
    kind = {"kind": "score", "visit": 0, "mode": "oracle", "mean_return": -1.0}
    return Trial.of(run, [{**kind, "task": task, "final_angles": found} for task, found in angles.items()])


def test_where_poles_point():
    two = {"pendulum+90": [90.0, 100.0], "pendulum-90": [-90.0]}
    figure = arm_positions(
        [pendulums("owl", two), pendulums("owl", two, 1), pendulums("experience-replay", two)]
    )
    assert [axes.get_title() for axes in figure.axes] == ["owl\n2 seeds", "experience-replay\n1 seed"]
    ends = [np.degrees(line.get_xdata()[1]) for line in figure.axes[0].get_lines()]
    assert ends == pytest.approx([90.0, 100.0, 90.0, 100.0, -90.0, -90.0])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(two)
    assert png(figure)
    three = arm_positions([pendulums("owl", two), pendulums("experience-replay", two)], apart=["owl"]).axes
    titles = ["owl, pendulum+90\n1 seed", "owl, pendulum-90\n1 seed", "experience-replay\n1 seed"]
    assert [axes.get_title() for axes in three] == titles
    ends = [[round(np.degrees(line.get_xdata()[1])) for line in axes.get_lines()] for axes in three]
    assert ends == [[90, 100], [-90], [90, 100, -90]]
    assert three[1].get_lines()[0].get_color() == three[2].get_lines()[2].get_color() == COLOURS[1]
    with pytest.raises(OwlValueError, match="owl has no final_angles with 'oracle'; expected runs on pend"):
        arm_positions([run_of(["a"], 1.0, method="owl")])
    with pytest.raises(OwlValueError, match="there are no trials"):
        arm_positions([])
