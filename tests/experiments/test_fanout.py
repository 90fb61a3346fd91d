from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from owlrl.errors import OwlStateError, OwlValueError
from owlrl.experiments import (
    Result,
    Run,
    Study,
    compare,
    compare_file,
    is_done,
    load_results,
    result_path,
    run_all,
    write_report,
    write_result,
)
from owlrl.experiments import _optional as optional_module
from owlrl.experiments import fanout as module
from owlrl.experiments.fanout import attempt, unfinished
from owlrl.experiments.keeping import Keeper
from owlrl.experiments.results import part_path, without_times
from tests.experiments.helpers import tiny
from tests.experiments.signs import TASKS, Fresh, make_model, numbers, write_study

ROOT = Path(__file__).parents[2]


def runs(count: int) -> list[Run]:
    return [tiny(seed=seed, frames=128) for seed in range(count)]


def test_what_is_done_is_not_done_again(tmp_path):
    first = run_all(runs(2), tmp_path, progress=False)
    assert [done.error for done in first] == [None, None]
    times = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    second = run_all(runs(3), tmp_path, progress=False)
    assert [done.run.seed for done in second] == [2]
    assert all(path.stat().st_mtime_ns == when for path, when in times.items())
    assert len(list(load_results(tmp_path))) == 3


def test_own_parts_by_their_dotted_names_in_other_processes(tmp_path):
    here = "tests.experiments.signs"
    policies = (f"{here}:slowly+{here}:own_evidence", f"hedge+td-and-{here}:own_evidence")
    own = [tiny(method=f"{here}:OWN", seed=seed, frames=128, policies=policies) for seed in range(2)]
    assert [done.error for done in run_all(own, tmp_path, jobs=2, progress=False)] == [None, None]
    found = list(load_results(tmp_path))
    assert {row["policy"] for row in found[0].select("evaluation")} == set(policies)
    elsewhere = tiny(method="nowhere.at_all:OWN", policies=("nowhere:x+td",))
    write_result(tmp_path, Result(elsewhere, found[0].rows, {}))  # read by one who does not have it
    page = write_report(tmp_path, episodes=0).read_text(encoding="utf-8")
    assert "nowhere.at_all:OWN" in page and "could not" not in page
    with pytest.raises(OwlValueError, match="which cannot be imported"):
        assert elsewhere.recipe


def test_a_damaged_file_is_done_again(tmp_path):
    (run,) = runs(1)
    tmp_path.mkdir(exist_ok=True)
    result_path(tmp_path, run).write_text("{", encoding="utf-8")
    assert unfinished([run, run], tmp_path) == [run]
    run_all([run], tmp_path, progress=False)
    assert is_done(tmp_path, run)


def test_one_failure_ends_no_other_run(tmp_path, monkeypatch):
    def failing(run, **options):
        if run.seed == 0:
            raise ValueError("seed 0 fails")
        return real(run, **options)

    real = module.run_experiment
    monkeypatch.setattr(module, "run_experiment", failing)
    done = run_all(runs(2), tmp_path, progress=False)
    assert [(a.run.seed, a.error) for a in done] == [(0, "ValueError: seed 0 fails"), (1, None)]
    assert [result.run.seed for result in load_results(tmp_path)] == [1]
    assert attempt(runs(1)[0]).result is None


def test_stopped_on_the_way_keeps_what_was_written(tmp_path, monkeypatch):
    def stopping(run, **options):
        if run.seed == 1:
            raise KeyboardInterrupt
        return real(run, **options)

    real = module.run_experiment
    monkeypatch.setattr(module, "run_experiment", stopping)
    with pytest.raises(KeyboardInterrupt):
        run_all(runs(3), tmp_path, progress=False)
    monkeypatch.undo()
    assert [result.run.seed for result in load_results(tmp_path)] == [0]
    assert [done.run.seed for done in run_all(runs(3), tmp_path, progress=False)] == [1, 2]


def test_a_run_that_was_stopped_goes_on_in_its_middle(tmp_path, monkeypatch):
    def stopping(keeper, state):
        keeper.save(state())
        raise KeyboardInterrupt

    (run,) = runs(1)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Keeper, "tick", stopping)
        run_all([run], tmp_path, progress=False)
    assert part_path(tmp_path, run).is_file() and not is_done(tmp_path, run)
    (done,) = run_all([run], tmp_path, progress=False)
    assert [file.suffix for file in tmp_path.iterdir()] == [".jsonl"]
    rows = [list(map(without_times, found.result.rows)) for found in (done, attempt(run, "nowhere"))]
    assert rows[0] == rows[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"jobs": 0}, "jobs is 0; expected an int >= 1"),
        ({"jobs": True}, "jobs is True"),
        ({"backend": "ray"}, "backend is 'ray'; expected 'loky' or 'dask'"),
        ({"backend": "dask"}, "go together"),
        ({"scheduler": "tcp://x:1"}, "go together"),
    ],
)
def test_bad_arguments_are_named(tmp_path, arguments, message):
    with pytest.raises(OwlValueError, match=message):
        run_all(runs(1), tmp_path, **arguments)


def missing(name):
    raise ImportError(f"No module named {name!r}")


def test_libraries_that_are_not_there_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(optional_module.importlib, "import_module", missing)
    with pytest.raises(OwlStateError, match=r'more than one job at once needs joblib .*pip install "joblib'):
        run_all(runs(2), tmp_path, jobs=2)
    assert [done.error for done in run_all(runs(1), tmp_path)] == [None]  # no bar, no error


class Joblib:
    """Does at once, one after the other, what it is given; notes how it was configured."""

    def __init__(self):
        self.settings = []
        self.delayed = lambda function: lambda *a: (function, a)

    @contextmanager
    def parallel_config(self, **settings):
        self.settings.append(settings)
        yield

    def Parallel(self, **_):  # joblib's name
        return lambda calls: (function(*a) for function, a in calls)


class Client:
    """In place of `distributed.Client`."""

    def __init__(self, address):
        if address == "nonsense":
            raise ValueError("missing port")
        self.address = address

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def test_backends_are_configured(tmp_path, monkeypatch):
    fakes = {"joblib": Joblib(), "distributed": SimpleNamespace(Client=Client)}
    monkeypatch.setattr(module, "optional", lambda name, **_: fakes[name])
    assert len(run_all(runs(2), tmp_path / "a", jobs=2, progress=False)) == 2
    assert len(run_all(runs(1), tmp_path / "b", backend="dask", scheduler="tcp://x:1", progress=False)) == 1
    local, cluster = fakes["joblib"].settings
    assert local == {"backend": "loky", "n_jobs": 2, "inner_max_num_threads": 1}
    assert cluster["backend"] == "dask" and cluster["client"].address == "tcp://x:1"
    with pytest.raises(OwlValueError, match=r"scheduler is 'nonsense'.*missing port.*tcp://host:8786"):
        run_all(runs(1), tmp_path / "c", backend="dask", scheduler="nonsense", progress=False)
    assert len(list(load_results(tmp_path / "a"))) == 2


def test_a_killed_process_keeps_what_is_finished(tmp_path, monkeypatch):
    class Dying(Joblib):
        def Parallel(self, **_):
            def call(calls):
                function, arguments = next(iter(calls))
                yield function(*arguments)
                raise BrokenProcessPool("a worker was terminated")

            return call

    monkeypatch.setattr(module, "optional", lambda name, **_: Dying())
    with pytest.raises(OwlStateError, match=r"a process was killed.*go on with the same call"):
        run_all(runs(2), tmp_path, jobs=2, progress=False)
    assert len(list(load_results(tmp_path))) == 1


WORKING = """
import sys, time
from pathlib import Path
from owlrl.experiments.fanout import fan_out

def work(name):
    for _ in range(1200):
        time.sleep(0.05)
        with Path(name).open("a") as file:
            file.write(".")

list(fan_out(work, sys.argv[1:], jobs=2))
"""


def test_workers_end_when_their_parent_is_killed(tmp_path):
    program, beats = tmp_path / "program.py", [tmp_path / "one", tmp_path / "two"]
    program.write_text(WORKING)
    with subprocess.Popen([sys.executable, program, *beats], cwd=ROOT) as process:
        until = time.monotonic() + 120
        while not all(path.exists() for path in beats):
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.05)
        process.kill()
    until = time.monotonic() + 60
    before, written = None, [path.stat().st_size for path in beats]
    while before != written:
        assert time.monotonic() < until, "a worker goes on without its parent"
        time.sleep(1.0)
        before, written = written, [path.stat().st_size for path in beats]


def test_a_bar_is_quiet_in_a_pipe(tmp_path, capfd):
    run_all(runs(1), tmp_path, progress=True)
    assert capfd.readouterr() == ("", "")


PROGRAM = """
import signal
from owlrl.experiments import compare, compare_file, run_all
from tests.experiments.helpers import tiny
from tests.experiments.signs import TASKS, Model

def make_model(env, seed):  # of the main program, which the other processes cannot import
    return Model(env, seed)

if __name__ == "__main__":
    # a background job of a shell ignores Ctrl-C, and so would this
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options = {"tasks": TASKS, "steps": 60, "eval_episodes": 2, "progress": False, "seeds": 2, "jobs": 2}
    methods = ["bare", "owl", "tests.experiments.signs:Fresh"]
    print(compare(make_model, **options, methods=methods, output="compared"))
    print(compare_file("my_study.py", progress=False, jobs=2, output="of a file"), flush=True)
    frames = [128, 128, 10**8, 10**8]  # two short runs, and two that would take for ever
    run_all([tiny(seed=seed, frames=n) for seed, n in enumerate(frames)], "run", jobs=2)
"""


def test_two_processes_give_the_bits_of_one_and_ctrl_c_leaves_them(tmp_path):
    """By a program as users write them; it is stopped when the short ones of its last runs are there."""
    study, program = write_study(tmp_path), tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), str(tmp_path)])
    options = {"env": {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}, "cwd": tmp_path}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, program], **options, **pipes) as process:
        until = time.monotonic() + 120
        while len(list(tmp_path.glob("run/*.jsonl"))) < 2 and time.monotonic() < until:
            if process.poll() is not None:
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        try:
            told, errors = process.communicate(timeout=30)
        finally:
            process.kill()  # or leaving the block would wait for ever
    assert told == (
        "Study(['bare', 'owl', 'fresh model'], tasks=['plain', 'shifted'], 2 seeds)\n"
        "Study(['bare'], tasks=['plain', 'shifted'], 2 seeds)\n"
    ), errors
    assert "KeyboardInterrupt" in errors
    quick = {"tasks": TASKS, "steps": 60, "eval_episodes": 2, "progress": False, "seeds": 2}
    here = compare(make_model, **quick, methods=["bare", "owl", Fresh])
    assert numbers(Study.load(tmp_path / "compared")) == numbers(here)
    assert numbers(Study.load(tmp_path / "of a file")) == numbers(compare_file(study, progress=False))
    apart = {r.run.seed: r.select("score") for r in load_results(tmp_path / "run")}
    assert apart == {seed: attempt(runs(2)[seed]).result.select("score") for seed in (0, 1)}
