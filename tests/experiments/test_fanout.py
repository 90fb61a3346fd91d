from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from owlrl.errors import OwlStateError, OwlValueError
from owlrl.experiments import (
    Run,
    Study,
    Trial,
    compare,
    compare_file,
    comparison,
    load_trials,
    run_all,
    run_experiment,
    write_report,
)
from owlrl.experiments import _optional as optional_module
from owlrl.experiments import fanout as module
from owlrl.experiments.comparison import kept_trials
from owlrl.experiments.keeping import Keeper
from owlrl.experiments.results import without_times
from tests.experiments.helpers import Joblib, tiny
from tests.experiments.signs import STUDY, TASKS, Fresh, make_model, numbers, write_study

ROOT = Path(__file__).parents[2]


def runs(count: int) -> list[Run]:
    return [tiny(seed=seed, frames=128) for seed in range(count)]


def done(directory, run) -> bool:
    return bool(kept_trials([Trial.of(run)], directory))


def test_what_is_done_is_not_done_again(tmp_path):
    trials, errors = run_all(runs(2), tmp_path, progress=False)
    assert [trial.seed for trial in trials] == [0, 1] and not errors
    times = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    trials, _ = run_all([*runs(3), *runs(1)], tmp_path, progress=False)
    assert [trial.seed for trial in trials] == [0, 1, 2]  # each once
    assert all(path.stat().st_mtime_ns == when for path, when in times.items())
    assert len(list(load_trials(tmp_path))) == 3


def test_own_parts_by_their_dotted_names_in_other_processes(tmp_path):
    here = "tests.experiments.signs"
    policies = (f"{here}:slowly+{here}:own_evidence", f"hedge+td-and-{here}:own_evidence")
    own = [tiny(method=f"{here}:OWN", seed=seed, frames=128, policies=policies) for seed in range(2)]
    found, errors = run_all(own, tmp_path, jobs=2, progress=False)
    assert not errors
    assert {row["mode"] for row in found[0].final()} == set(policies)
    elsewhere = tiny(method="nowhere.at_all:OWN", policies=("nowhere:x+td",))
    Trial.of(elsewhere, found[0].rows).write(tmp_path)  # read by one who does not have it
    page = write_report(tmp_path, episodes=0).read_text(encoding="utf-8")
    assert "nowhere.at_all:OWN" in page and "could not" not in page
    with pytest.raises(OwlValueError, match="which cannot be imported"):
        assert elsewhere.recipe


def test_a_damaged_file_is_done_again(tmp_path):
    (run,) = runs(1)
    (tmp_path / f"{run.id}.jsonl").write_text("{", encoding="utf-8")
    assert not done(tmp_path, run)
    run_all([run], tmp_path, progress=False)
    assert done(tmp_path, run)


def test_one_failure_ends_no_other_run(tmp_path, monkeypatch):
    def failing(plan, trial, **options):
        if trial.seed == 0:
            raise ValueError("seed 0 fails")
        return real(plan, trial, **options)

    real = comparison.run_trial
    monkeypatch.setattr(comparison, "run_trial", failing)
    trials, ((method, seed, text),) = run_all(runs(2), tmp_path, progress=False)
    assert (method, seed) == ("owl-memory", 0) and text.startswith("ValueError: seed 0 fails (")
    assert [trial.seed for trial in trials] == [trial.seed for trial in load_trials(tmp_path)] == [1]


def test_stopped_on_the_way_keeps_what_was_written(tmp_path, monkeypatch):
    def stopping(plan, trial, **options):
        if trial.seed == 1:
            raise KeyboardInterrupt
        return real(plan, trial, **options)

    real = comparison.run_trial
    monkeypatch.setattr(comparison, "run_trial", stopping)
    with pytest.raises(KeyboardInterrupt):
        run_all(runs(3), tmp_path, progress=False)
    monkeypatch.undo()
    assert [trial.seed for trial in load_trials(tmp_path)] == [0]
    assert len(run_all(runs(3), tmp_path, progress=False)[0]) == 3


def test_a_run_that_was_stopped_goes_on_in_its_middle(tmp_path, monkeypatch):
    def stopping(keeper, state):
        keeper.save(state())
        raise KeyboardInterrupt

    (run,) = runs(1)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Keeper, "tick", stopping)
        run_all([run], tmp_path, progress=False)
    assert (tmp_path / f"{run.id}.part").is_file() and not done(tmp_path, run)
    (trial,), _ = run_all([run], tmp_path, progress=False)
    assert [file.suffix for file in tmp_path.iterdir()] == [".jsonl"]
    rows = [list(map(without_times, found.rows)) for found in (trial, run_experiment(run))]
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


def missing(name, find=import_module):
    if name in ("joblib", "tqdm"):
        raise ImportError(f"No module named {name!r}")
    return find(name)


def test_libraries_that_are_not_there_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(optional_module.importlib, "import_module", missing)
    with pytest.raises(OwlStateError, match=r'more than one job at once needs joblib .*pip install "joblib'):
        run_all(runs(2), tmp_path, jobs=2)
    assert run_all(runs(1), tmp_path)[1] == []  # no bar, no error


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
    assert len(run_all(runs(2), tmp_path / "a", jobs=2, progress=False)[0]) == 2
    cluster = {"backend": "dask", "scheduler": "tcp://x:1"}
    assert len(run_all(runs(1), tmp_path / "b", **cluster, progress=False)[0]) == 1
    local, cluster = fakes["joblib"].settings
    assert local == {"backend": "loky", "n_jobs": 2, "inner_max_num_threads": 1}
    assert cluster["backend"] == "dask" and cluster["client"].address == "tcp://x:1"
    with pytest.raises(OwlValueError, match=r"scheduler is 'nonsense'.*missing port.*tcp://host:8786"):
        run_all(runs(1), tmp_path / "c", backend="dask", scheduler="nonsense", progress=False)
    assert len(list(load_trials(tmp_path / "a"))) == 2


def test_a_killed_process_keeps_what_is_finished(tmp_path, monkeypatch):
    class Dying(Joblib):
        def Parallel(self, **_):
            def call(calls):
                function, arguments = next(iter(calls))
                yield function(*arguments)
                raise BrokenProcessPool("a worker was terminated")

            return call

    monkeypatch.setattr(module, "optional", lambda name, **_: Dying())
    with pytest.raises(OwlStateError, match=r"a process was killed.*continue with the same call"):
        run_all(runs(2), tmp_path, jobs=2, progress=False)
    assert len(list(load_trials(tmp_path))) == 1


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


def test_a_worker_ends_when_its_parent_has_gone(monkeypatch):
    """The watch of a worker, without a process; the next test kills a real parent."""
    parents, looks, codes, ended = iter([7, 7, 7, 1]), [], [], threading.Event()

    def parent_now():
        looks.append(next(parents))
        return looks[-1]

    def leave(code):
        codes.append((code, list(looks)))
        ended.set()

    system = SimpleNamespace(name="posix", getpid=lambda: 8, getppid=parent_now, _exit=leave)
    monkeypatch.setattr(module, "os", system)
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=lambda seconds: None))
    module._end_with.cache_clear()
    assert module._attended(str, 8, 0) == "0" and not looks  # in the parent itself
    assert [module._attended(str, 7, item) for item in (1, 2)] == ["1", "2"]
    assert ended.wait(60) and codes == [(1, [7, 7, 7, 1])]  # one watch, however many items
    module._end_with.cache_clear()


@pytest.mark.slow
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


def test_a_pipe_is_told_in_lines_and_has_no_bar(tmp_path, capfd):
    run_all(runs(1), tmp_path, progress=True)
    told, said = capfd.readouterr()
    assert told == "" and said == "run_all: 1 runs of 1 to do, 256 steps each, 1 at once\n"


PROGRAM = """
import signal
from owlrl.experiments import compare, compare_file, run_all
from tests.experiments.helpers import Joblib, tiny
from tests.experiments.signs import TASKS, Model

def make_model(env, seed):  # of the main program, which the other processes cannot import
    return Model(env, seed)

if __name__ == "__main__":
    # a background job of a shell ignores Ctrl-C, and so would this
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options = {"tasks": TASKS, "steps": 60, "eval_episodes": 2, "progress": False, "seeds": 2, "jobs": 2}
    methods = ["bare", "owl", "tests.experiments.signs:Fresh"]
    print(compare(make_model, **options, methods=methods, output="compared"))
    chosen = {"methods": ["bare", "mine"], "progress": False}  # a method that only the file has
    print(compare_file("my_study.py", **chosen, jobs=2, output="of a file"), flush=True)
    frames = [128, 128, 10**8, 10**8]  # two short runs, and two that would take for ever
    run_all([tiny(seed=seed, frames=n) for seed, n in enumerate(frames)], "run", jobs=2)
"""


def test_two_processes_give_the_bits_of_one_and_ctrl_c_leaves_them(tmp_path):
    """By a program as users write them; it is stopped when the short ones of its last runs are there."""
    own = "from owlrl.experiments import Wrapped\n" + STUDY.replace('["bare"]', '["bare", Wrapped("mine")]')
    study, program = write_study(tmp_path, own), tmp_path / "program.py"
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
        "Study(['bare', 'mine'], tasks=['plain', 'shifted'], 2 seeds)\n"
    ), errors
    assert "KeyboardInterrupt" in errors
    quick = {"tasks": TASKS, "steps": 60, "eval_episodes": 2, "progress": False, "seeds": 2}
    here = compare(make_model, **quick, methods=["bare", "owl", Fresh])
    assert numbers(Study.load(tmp_path / "compared")) == numbers(here)
    assert numbers(Study.load(tmp_path / "of a file")) == numbers(
        compare_file(study, methods=["bare", "mine"], progress=False)
    )
    apart = {trial.seed: trial.select("score") for trial in load_trials(tmp_path / "run")}
    assert apart == {seed: run_experiment(runs(2)[seed]).select("score") for seed in (0, 1)}
