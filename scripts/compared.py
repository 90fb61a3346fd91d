"""Studies that are comparisons: their blocks in docs/results and their figures, from the committed runs.

A block ``<!-- study-NAME -->`` has the figure, the telling rows of what ``owlrl reproduce NAME`` prints, what
was to be shown, number by number, and the whole table folded away; without runs it says so.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from owlrl.errors import OwlValueError
from owlrl.experiments import Study
from owlrl.experiments.methods import GIVEN, RANDOM, UNKNOWN
from owlrl.experiments.plots import INK, QUIET, new_figure, plain
from scripts.results_data import ROOT, folded, picked, tables_in

RUNS = "benchmarks/results"


class Compared(NamedTuple):
    """A study: where its runs are, the largest mean of one policy, and whether to measure above random."""

    directory: str
    bound: float | None = None
    above_random: bool = False
    unit: str = "return"


STUDIES = {
    "cheetah": Compared(f"{RUNS}/cheetah", 0.0),
    "reacher": Compared(f"{RUNS}/reacher", 22.0),
    "deep-sea": Compared(f"{RUNS}/treasure/deep-sea", 2.45, above_random=True),
    "fruit-tree": Compared(f"{RUNS}/treasure/fruit-tree", 3.95, above_random=True),
    "minatar": Compared(f"{RUNS}/minatar", unit="score"),
}


@cache
def study_of(name: str) -> Study | None:
    """The committed runs of a study; None if there are none."""
    try:
        return Study.load(ROOT / STUDIES[name].directory)
    except OwlValueError:
        return None


def relative(study: Study, scores: Any) -> Any:
    """Scores (seeds, tasks) from random actions (0) to a separate model per task (1), means over seeds."""
    low = study.scores(RANDOM.name, mode=UNKNOWN).mean(axis=0)
    return (scores - low) / (study.scores("alone").mean(axis=0) - low)


def drawn() -> dict[str, str]:
    """The studies that have runs, and where these are."""
    return {name: about.directory for name, about in STUDIES.items() if study_of(name) is not None}


def block(name: str) -> str:
    """What stands on the page."""
    study = study_of(name)
    if study is None:
        return "\nNo run of this study is in the repository yet.\n\n"
    bound = "" if STUDIES[name].bound is None else "; dotted: the bound"
    text = f"Mean {STUDIES[name].unit} over tasks at the end, a dot per seed, by method{bound}."
    told, _, _ = study.table().partition("\n\n")
    (table,) = tables_in(study.table())
    shown = ("bare", "alone"), ("owl",)
    rows = picked(table, lambda row: row[0] in shown[0] or (row[0] in shown[1] and row[1] == UNKNOWN))
    parts = [f"![{text}](../images/{name}.svg)", told, rows, *judged(name, study), folded("All rows", table)]
    return "\n" + "\n\n".join(parts) + "\n\n"


def judged(name: str, study: Study) -> list[str]:
    """A paragraph for each method that acts both ways: kept, found, and beside separate models."""
    about, found = STUDIES[name], []
    if study.note:
        found.append(study.note)
    low = study.scores(RANDOM.name, mode=UNKNOWN).mean(axis=0) if about.above_random else 0.0
    for method in study.methods:
        if set(study.modes(method)) < {GIVEN, UNKNOWN}:
            continue
        after, final = (study.scores(method, when=when) - low for when in ("right after", "final"))
        kept, ratio = final / after, (study.scores(method, mode=UNKNOWN) - low) / final
        measure = " above random actions" if about.above_random else ""
        found.append(
            f"*{method}*{measure}: final / right after {kept.mean():.3f}, worst seed and task "
            f"{kept.min():.3f}; task unknown / given {ratio.mean():.3f}, worst {ratio.min():.3f} "
            f"({len(kept)} seeds)."
        )
    return found


def draw(name: str) -> Any:
    """A bar per method and way to act, a dot per seed, the bound of one policy as a line."""
    study, about = study_of(name), STUDIES[name]
    assert study is not None
    ways = list(study.to_rliable().items())[::-1]
    figure = new_figure(7.5, 1.0 + 0.34 * len(ways))
    axes = figure.subplots()
    for place, (_, scores) in enumerate(ways):
        means = scores.mean(axis=1)
        axes.barh(place, np.median(means), 0.6, color="#332288", alpha=0.8)
        axes.plot(means, np.full(len(means), place), "o", ms=4, color=QUIET)
    if about.bound is not None:
        axes.axvline(about.bound, color=INK, lw=1.2, ls=":")
    axes.set(yticks=range(len(ways)), yticklabels=[label for label, _ in ways])
    axes.set_xlabel(f"mean {about.unit} over tasks at the end; bars: median of seeds")
    plain(axes)
    return figure
