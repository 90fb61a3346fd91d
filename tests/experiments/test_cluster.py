"""A Dask cluster of two workers, one of which is killed (needs the extra "cluster")."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from owlrl.experiments import Study, compare_file, load_trials, run_experiment
from owlrl.experiments.results import without_times
from tests.experiments.helpers import tiny
from tests.experiments.signs import Fresh, numbers, write_study

SCRIPT = """
import logging
from distributed import LocalCluster
from owlrl.experiments import run_all
from tests.experiments.helpers import tiny

if __name__ == "__main__":
    quiet = {"dashboard_address": None, "silence_logs": logging.CRITICAL}
    with LocalCluster(n_workers=2, threads_per_worker=1, **quiet) as cluster:
        print(*(worker.pid for worker in cluster.workers.values()), flush=True)
        runs = [tiny(seed=seed, frames=5_000) for seed in range(5)]
        where = {"backend": "dask", "scheduler": cluster.scheduler_address}
        trials, errors = run_all(runs, %r, **where, save_every=0.2)
        print(len(trials), len(errors), flush=True)
"""


COMPARED = """
import logging
from distributed import LocalCluster
from owlrl.experiments import compare_file

if __name__ == "__main__":
    quiet = {"dashboard_address": None, "silence_logs": logging.CRITICAL}
    with LocalCluster(n_workers=2, threads_per_worker=1, **quiet) as cluster:
        where = {"backend": "dask", "scheduler": cluster.scheduler_address}
        methods = ["bare", "owl", "tests.experiments.signs:Fresh"]
        print(compare_file("my_study.py", methods=methods, output="compared", progress=False, **where))
"""


@pytest.mark.slow
def test_compare_on_a_cluster_gives_the_numbers_of_one_process(tmp_path):
    study, program = write_study(tmp_path), tmp_path / "program.py"
    program.write_text(COMPARED, encoding="utf-8")
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root / "src"), str(root), str(tmp_path)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    options = {"env": environment, "cwd": tmp_path, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, program], **options, timeout=300, check=False)
    assert done.stdout == "Study(['bare', 'owl', 'fresh model'], tasks=['plain', 'shifted'], 2 seeds)\n", (
        done.stderr
    )
    here = compare_file(study, methods=["bare", "owl", Fresh], progress=False)
    assert numbers(Study.load(tmp_path / "compared")) == numbers(here)


@pytest.mark.slow
def test_a_killed_worker_costs_no_result(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(SCRIPT % str(tmp_path), encoding="utf-8")
    paths = os.pathsep.join(["src", ".", os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, program], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        first, _second = map(int, process.stdout.readline().split())
        until = time.monotonic() + 120
        while not list(tmp_path.glob("*.jsonl")) and time.monotonic() < until:
            time.sleep(0.1)
        os.kill(first, signal.SIGKILL)  # it is in the middle of its next run
        out, _ = process.communicate(timeout=300)
    assert out.split() == ["5", "0"]
    killed = {trial.seed: trial for trial in load_trials(tmp_path)}
    assert sorted(killed) == list(range(5))
    for seed, trial in killed.items():  # also the run that was gone on with by the other worker
        alone = run_experiment(tiny(seed=seed, frames=5_000))
        assert [without_times(row) for row in trial.rows] == [without_times(row) for row in alone.rows]
