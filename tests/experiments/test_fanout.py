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
from owlrl.experiments import Run, is_done, load_results, result_path, run_all
from owlrl.experiments import _optional as optional_module
from owlrl.experiments import fanout as module
from owlrl.experiments.fanout import attempt, unfinished
from tests.experiments.helpers import tiny


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


def test_a_damaged_file_is_done_again(tmp_path):
    (run,) = runs(1)
    tmp_path.mkdir(exist_ok=True)
    result_path(tmp_path, run).write_text("{", encoding="utf-8")
    assert unfinished([run, run], tmp_path) == [run]
    run_all([run], tmp_path, progress=False)
    assert is_done(tmp_path, run)


def test_one_failure_ends_no_other_run(tmp_path, monkeypatch):
    def failing(run):
        if run.seed == 0:
            raise ValueError("seed 0 fails")
        return real(run)

    real = module.run_experiment
    monkeypatch.setattr(module, "run_experiment", failing)
    done = run_all(runs(2), tmp_path, progress=False)
    assert [(a.run.seed, a.error) for a in done] == [(0, "ValueError: seed 0 fails"), (1, None)]
    assert [result.run.seed for result in load_results(tmp_path)] == [1]
    assert attempt(runs(1)[0]).result is None


def test_stopped_on_the_way_keeps_what_was_written(tmp_path, monkeypatch):
    def stopping(run):
        if run.seed == 1:
            raise KeyboardInterrupt
        return real(run)

    real = module.run_experiment
    monkeypatch.setattr(module, "run_experiment", stopping)
    with pytest.raises(KeyboardInterrupt):
        run_all(runs(3), tmp_path, progress=False)
    monkeypatch.undo()
    assert [result.run.seed for result in load_results(tmp_path)] == [0]
    assert [done.run.seed for done in run_all(runs(3), tmp_path, progress=False)] == [1, 2]


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


def test_a_bar_is_quiet_in_a_pipe(tmp_path, capfd):
    run_all(runs(1), tmp_path, progress=True)
    assert capfd.readouterr() == ("", "")


SCRIPT = """
import signal
# a background job of a shell ignores Ctrl-C, and so would this
signal.signal(signal.SIGINT, signal.default_int_handler)
from owlrl.experiments import run_all
from tests.experiments.helpers import tiny
run_all([tiny(seed=seed, frames=frames) for seed, frames in enumerate({frames})], {directory!r}, jobs=2)
"""


def script(directory: Path, frames: list[int]) -> list[str]:
    return [sys.executable, "-c", SCRIPT.format(frames=frames, directory=str(directory))]


def test_two_processes_give_what_one_gives_and_ctrl_c_leaves_it(tmp_path):
    """Two short runs and two that would take for ever; stopped when the short ones are there."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."]), "OMP_NUM_THREADS": "1"}
    endless = 10**8
    with subprocess.Popen(
        script(tmp_path, [128, 128, endless, endless]), env=environment, stderr=subprocess.PIPE
    ) as process:
        until = time.monotonic() + 60
        while len(list(tmp_path.glob("*.jsonl"))) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()  # or leaving the block would wait for ever
    assert b"KeyboardInterrupt" in errors
    apart = {r.run.seed: [row for row in r.rows if row["kind"] == "score"] for r in load_results(tmp_path)}
    here = {
        s: [row for row in attempt(tiny(seed=s, frames=128)).result.rows if row["kind"] == "score"]
        for s in (0, 1)
    }
    assert apart == here
