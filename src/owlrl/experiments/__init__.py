"""The paper's comparisons and ours: methods made of the same parts, metrics, studies, results."""

from __future__ import annotations

from owlrl.experiments.comparison import compare, compare_file, diagnose, run_trial
from owlrl.experiments.config import METHODS, PRESETS, Preset, Recipe, Run
from owlrl.experiments.frames import Recording, frame_strip, record_episode, write_gif
from owlrl.experiments.methods import Learned, Method, Score, Wrapped, register_method
from owlrl.experiments.metrics import (
    cumulative_performance,
    final_performance,
    forgetting,
    forward_transfer,
    identification_accuracy,
    iqm,
    iqm_over_seeds,
    mean_score,
    probability_of_improvement,
    regret,
    steps_to_identify,
    stratified_bootstrap,
    welch_test,
)
from owlrl.experiments.models import (
    Envs,
    History,
    Watch,
    described,
    greedy_policy,
    load_model_state,
    model_state,
    train_model,
)
from owlrl.experiments.paper import paper_tables
from owlrl.experiments.plan import Plan
from owlrl.experiments.plots import (
    arm_positions,
    completions,
    head_errors,
    head_probabilities,
    learning_curves,
)
from owlrl.experiments.policies import EvidenceSet, make_evidence, parse_policy
from owlrl.experiments.progress import TensorBoard
from owlrl.experiments.report import write_report
from owlrl.experiments.results import Group, Trial, environment, group_by_run, load_trials
from owlrl.experiments.selection_plots import selection_bars, selection_curves, selections
from owlrl.experiments.session import Session, evaluate
from owlrl.experiments.studies import (
    MODULES,
    STUDIES,
    StudyPlan,
    reproduce,
    run_all,
    run_experiment,
    study_runs,
    study_table,
)
from owlrl.experiments.study import Study, Verdict
from owlrl.experiments.tables import markdown_tables
from owlrl.experiments.tasks import resolve_tasks, resolve_unseen, table_of
from owlrl.experiments.value_maps import SharedGrid, ValueMap, four_rooms, q_heatmap, shared_grid, value_map

__all__ = [
    "METHODS",
    "MODULES",
    "PRESETS",
    "STUDIES",
    "Envs",
    "EvidenceSet",
    "Group",
    "History",
    "Learned",
    "Method",
    "Plan",
    "Preset",
    "Recipe",
    "Recording",
    "Run",
    "Score",
    "Session",
    "SharedGrid",
    "Study",
    "StudyPlan",
    "TensorBoard",
    "Trial",
    "ValueMap",
    "Verdict",
    "Watch",
    "Wrapped",
    "arm_positions",
    "compare",
    "compare_file",
    "completions",
    "cumulative_performance",
    "described",
    "diagnose",
    "environment",
    "evaluate",
    "final_performance",
    "forgetting",
    "forward_transfer",
    "four_rooms",
    "frame_strip",
    "greedy_policy",
    "group_by_run",
    "head_errors",
    "head_probabilities",
    "identification_accuracy",
    "iqm",
    "iqm_over_seeds",
    "learning_curves",
    "load_model_state",
    "load_trials",
    "make_evidence",
    "markdown_tables",
    "mean_score",
    "model_state",
    "paper_tables",
    "parse_policy",
    "probability_of_improvement",
    "q_heatmap",
    "record_episode",
    "register_method",
    "regret",
    "reproduce",
    "resolve_tasks",
    "resolve_unseen",
    "run_all",
    "run_experiment",
    "run_trial",
    "selection_bars",
    "selection_curves",
    "selections",
    "shared_grid",
    "steps_to_identify",
    "stratified_bootstrap",
    "study_runs",
    "study_table",
    "table_of",
    "train_model",
    "value_map",
    "welch_test",
    "write_gif",
    "write_report",
]
