"""The paper's comparisons and ours: methods as arrangements of the same parts, metrics, studies, results."""

from __future__ import annotations

from owlrl.experiments.config import Run
from owlrl.experiments.evaluation import evaluate, evaluate_in_a_row
from owlrl.experiments.evidence import EvidenceSet, make_evidence
from owlrl.experiments.fanout import Attempt, run_all
from owlrl.experiments.methods import METHODS, Method
from owlrl.experiments.metrics import (
    cumulative_performance,
    final_performance,
    forgetting,
    forward_transfer,
    identification_accuracy,
    iqm,
    iqm_over_seeds,
    mean_score,
    regret,
    steps_to_identify,
    stratified_bootstrap,
)
from owlrl.experiments.policies import parse_policy
from owlrl.experiments.presets import PRESETS, Preset
from owlrl.experiments.results import (
    Result,
    environment,
    is_done,
    load_results,
    read_result,
    result_path,
    write_result,
)
from owlrl.experiments.session import Session
from owlrl.experiments.studies import STUDIES, Study, reproduce, study_runs, study_table
from owlrl.experiments.summary import Group, group_by_run
from owlrl.experiments.tables import markdown_tables
from owlrl.experiments.tasks import resolve_tasks, resolve_unseen, table_of
from owlrl.experiments.training import evaluate_session, run_experiment, train

__all__ = [
    "METHODS",
    "PRESETS",
    "STUDIES",
    "Attempt",
    "EvidenceSet",
    "Group",
    "Method",
    "Preset",
    "Result",
    "Run",
    "Session",
    "Study",
    "cumulative_performance",
    "environment",
    "evaluate",
    "evaluate_in_a_row",
    "evaluate_session",
    "final_performance",
    "forgetting",
    "forward_transfer",
    "group_by_run",
    "identification_accuracy",
    "iqm",
    "iqm_over_seeds",
    "is_done",
    "load_results",
    "make_evidence",
    "markdown_tables",
    "mean_score",
    "parse_policy",
    "read_result",
    "regret",
    "reproduce",
    "resolve_tasks",
    "resolve_unseen",
    "result_path",
    "run_all",
    "run_experiment",
    "steps_to_identify",
    "stratified_bootstrap",
    "study_runs",
    "study_table",
    "table_of",
    "train",
    "write_result",
]
