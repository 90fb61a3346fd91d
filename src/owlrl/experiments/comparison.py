"""`compare`: the user's own model, tasks and methods in one comparison, with numbers that say what helped."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from owlrl._arguments import Arguments
from owlrl.acting.episodes import run_episodes
from owlrl.describe.given import as_env
from owlrl.errors import OwlError, OwlStateError, OwlTypeError, OwlValueError
from owlrl.experiments.fanout import Backend, check_workers, fan_out, progress_bar
from owlrl.experiments.fingerprint import fingerprint
from owlrl.experiments.methods import RANDOM, Learned, Method, find_method
from owlrl.experiments.models import greedy_policy, make_env, seed_env, share_statistics
from owlrl.experiments.results import environment, make_directory
from owlrl.experiments.study import Row, Study, Trial
from owlrl.experiments.training import kept_generators, repeatable

__all__ = ["Plan", "compare", "compare_file", "run_trial"]

EVALUATION = 10_000  # added to a run's seed: no episode of the training is evaluated
Tell = Callable[[str], None]
CHOSEN = ("steps", "methods", "seeds")  # of a study file, what a command may say instead
OPTIONAL = ("rounds", "eval_every", "eval_episodes", "jobs", "output", "backend", "scheduler", "solved")


@dataclass(frozen=True)
class Plan:
    """What `compare` was asked for, checked: everything that decides what a trial is.

    Attributes:
        make_model: ``make_model(env, seed)``.
        tasks: a Gymnasium id or a factory by name.
        methods: the methods themselves.
        steps: of each task in each round.
        seeds: of the trials.
        rounds: how often the sequence of tasks is gone through.
        eval_every: steps between two points of a learning curve; None for none.
        eval_episodes: episodes of each evaluation.

    >>> from owlrl.experiments.comparison import Plan
    >>> plan = Plan.of(print, tasks={"left": "CartPole-v1"}, steps=10, methods=["owl"], seeds=2)
    >>> plan.steps, plan.seeds
    ({'left': 10}, (0, 1))
    """

    make_model: Callable[[Any, int], Any]
    tasks: dict[str, Any]
    methods: tuple[Method, ...]
    steps: dict[str, int]
    seeds: tuple[int, ...]
    rounds: int = 1
    eval_every: int | None = None
    eval_episodes: int = 20

    @classmethod
    def of(
        cls,
        make_model: Any,
        *,
        tasks: Any,
        steps: Any,
        methods: Any = ("bare", "alone", "owl"),
        seeds: Any = 5,
        rounds: Any = 1,
        eval_every: Any = None,
        eval_episodes: Any = 20,
    ) -> Plan:
        """The plan of `compare`'s arguments; one error names all that is wrong with them."""
        arguments = Arguments("compare")
        arguments.function("make_model", make_model, "make_model(env, seed)")
        named = dict(tasks) if isinstance(tasks, Mapping) else {}
        if not named or not all(isinstance(name, str) and name for name in named):
            arguments.problem(
                f"tasks is {tasks!r}; expected a mapping from names to ids or factories f(seed)"
            )
        each = dict(steps) if isinstance(steps, Mapping) else dict.fromkeys(named, steps)
        if set(each) != set(named):
            arguments.problem(
                f"steps has {', '.join(map(repr, each))}; expected one number per task, or one for all"
            )
        each = {name: arguments.integer(f"steps of {name!r}", number) for name, number in each.items()}
        if not isinstance(seeds, Sequence):
            number = arguments.integer("seeds", seeds)
            seeds = range(number) if isinstance(number, int) else ()
        chosen = tuple(
            arguments.integer("seed", seed, least=0, most=2**31 - 1 - EVALUATION) for seed in seeds
        )
        found = [find_method(method) for method in ([methods] if isinstance(methods, str) else methods)]
        names = [method.name for method in found]
        if not found or len(set(names)) != len(names) or RANDOM.name in names:
            arguments.problem(
                f"methods are {names}; expected at least one, each once, and not {RANDOM.name!r}"
            )
        every = arguments.integer("eval_every", eval_every, none=True)
        episodes = arguments.integer("eval_episodes", eval_episodes)
        times = arguments.integer("rounds", rounds)
        arguments.check()
        return cls(make_model, named, tuple(found), each, chosen, times, every, episodes)

    def settings(self) -> dict[str, Any]:
        """All that is plain data, as a trial keeps it."""
        return {
            "tasks": list(self.tasks),
            "steps": self.steps,
            "rounds": self.rounds,
            "eval_every": self.eval_every,
            "eval_episodes": self.eval_episodes,
        }

    def trials(self) -> list[Trial]:
        """One per method and seed, seed after seed, and random actions last; nothing of them has been run."""
        settings, chosen = self.settings(), [*self.methods, RANDOM]
        sources = {m.name: fingerprint(self.make_model, self.tasks, m) for m in chosen}
        return [
            Trial(method.name, seed, settings, sources[method.name], method.about)
            for method in sorted(chosen, key=lambda method: method is RANDOM)
            for seed in self.seeds
        ]

    def method(self, name: str) -> Method:
        """The method of that name."""
        return next(method for method in (*self.methods, RANDOM) if method.name == name)

    @property
    def total(self) -> int:
        """Steps of one trial."""
        return self.rounds * sum(self.steps.values())


def compare(
    make_model: Callable[[Any, int], Any],
    *,
    tasks: Mapping[str, Any],
    steps: int | Mapping[str, int],
    methods: Sequence[Any] = ("bare", "alone", "owl"),
    seeds: int | Sequence[int] = 5,
    rounds: int = 1,
    eval_every: int | None = None,
    eval_episodes: int = 20,
    jobs: int = 1,
    output: str | os.PathLike[str] | None = None,
    backend: Backend = "loky",
    scheduler: str | None = None,
    solved: Mapping[str, float] | None = None,
    progress: bool = True,
) -> Study:
    """Train with each method task after task, evaluate every task after each one, and compare the outcome.

    The tables answer whether it helped, and `Study.verdicts` why not: the learner, the forgetting or the
    recognising. Every run is decided by its seed, on one thread; several processes give the same numbers as
    one.

    Args:
        make_model: ``make_model(env, seed)`` gives a model for that environment: anything that `OwlWrapper`
            takes (a Stable-Baselines3 model, a learner of `owlrl.learners`), or an object with
            ``train(steps)`` and ``learner``, for a script of your own (see `train_model`).
        tasks: in the order of training: a Gymnasium id, or a factory ``f(seed)`` of an environment or a
            vector of them, by name. Training and evaluation have environments of their own.
        steps: of each task in each round; one number, or one per task.
        methods: of "bare", "bare, empty replay", "alone", "one head with rehearsal", "one head with history",
            "owl", "owl with EWC" and "paper"; or a `Method` of your own, or "package.module:name" of one.
        seeds: how many, or which.
        rounds: how often the sequence of tasks is gone through.
        eval_every: steps between two points of the learning curve of the task in training; None for none.
            Forward transfer needs it.
        eval_episodes: of each evaluation, with the same seeds each time.
        jobs: how many runs at once.
        output: directory for finished runs (JSON lines); the same call then goes on where it was stopped, and
            runs again what belongs to a changed model, task or method.
        backend: "loky" for processes of this machine, "dask" for a Dask cluster, which executes what it is
            sent.
        scheduler: the address of the cluster's scheduler.
        solved: the return from which a task counts as learned, by task, for the verdicts.
        progress: say on stderr what is running and how long it will take.

    >>> import gymnasium
    >>> from owlrl.experiments import compare
    >>> from owlrl.learners import DQN
    >>> study = compare(lambda env, seed: DQN(env, seed=seed), tasks={"upright": "CartPole-v1"}, steps=300,
    ...                 methods=["bare"], seeds=1, eval_episodes=2, progress=False)
    >>> study.scores("bare").shape
    (1, 1)
    """
    plan = Plan.of(
        make_model,
        tasks=tasks,
        steps=steps,
        methods=methods,
        seeds=seeds,
        rounds=rounds,
        eval_every=eval_every,
        eval_episodes=eval_episodes,
    )
    places: dict[str, Any] = {"jobs": jobs, "backend": backend, "scheduler": scheduler}
    return _run(plan, partial(_same, plan), output=output, solved=solved, progress=progress, **places)


def compare_file(path: str | os.PathLike[str], *, progress: bool = True, **instead: Any) -> Study:
    """`compare` what a file of Python says; workers execute the same file.

    The file has ``make_model`` and ``tasks``, and any other arguments of `compare`
    (``steps``, ``methods``, …) as variables of these names; or a function ``study()`` that returns them as a
    dict.

    Args:
        path: the file.
        progress: say on stderr what is running.
        instead: arguments of `compare` that replace the file's; None replaces nothing.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from owlrl.experiments import compare_file
    >>> path = Path(tempfile.mkdtemp()) / "my_study.py"
    >>> _ = path.write_text('''
    ... from owlrl.learners import DQN
    ... tasks = {"upright": "CartPole-v1"}
    ... steps, methods, seeds, eval_episodes = 300, ["bare"], 1, 2
    ... def make_model(env, seed):
    ...     return DQN(env, seed=seed)
    ... ''')
    >>> compare_file(path, progress=False)
    Study(['bare'], tasks=['upright'], 1 seed)
    """
    text = _read(path)
    chosen = {name: value for name, value in instead.items() if value is not None}
    for_plan = {name: value for name, value in chosen.items() if name in CHOSEN}
    plan, said = _plan_of_file(os.fspath(path), text, for_plan)
    rest: dict[str, Any] = {"jobs": 1, "backend": "loky", **said, **chosen}
    names = ("jobs", "backend", "scheduler", "output", "solved")
    recall = partial(_recalled, os.path.abspath(path), text, for_plan)
    told: dict[str, Any] = {name: rest.get(name) for name in names}
    return _run(plan, recall, progress=progress, **told)


def _run(
    plan: Plan,
    recall: Callable[[], Plan],
    *,
    jobs: int,
    backend: Backend,
    scheduler: str | None,
    output: str | os.PathLike[str] | None,
    solved: Mapping[str, float] | None,
    progress: bool,
) -> Study:
    check_workers("compare", jobs=jobs, backend=backend, scheduler=scheduler)
    say: Tell = _say if progress else (lambda text: None)
    trials = plan.trials()
    if output is not None:
        make_directory(output)
    done = {} if output is None else dict(_kept(trials, output, say))
    todo = [trial for trial in trials if trial.id not in done]
    if todo:
        each = (
            f"{plan.total:,} steps each"
            if plan.rounds == 1
            else f"{plan.total:,} steps in {plan.rounds} rounds each"
        )
        say(f"compare: {len(todo)} runs of {len(trials)} to do, {each}, {jobs} at once")
    errors: list[tuple[str, int, str]] = []
    clock = _Clock(plan, todo, jobs, say)
    with progress_bar(len(todo), progress) as bar:
        tell = bar.set_description_str if jobs == 1 and scheduler is None else None
        attempt = partial(_attempt, recall, tell)
        with closing(fan_out(attempt, todo, jobs=jobs, scheduler=scheduler)) as results:
            bar.set_description_str(clock.running())
            for trial, error in results:
                if error is None:
                    done[trial.id] = trial
                    if output is not None:
                        trial.write(output)
                else:
                    errors.append((trial.method, trial.seed, error))
                    say(f"compare: {trial.method}, seed {trial.seed} failed: {error}")
                clock.note(trial)
                bar.set_description_str(clock.running())
                bar.update(1)
    if not done:
        raise OwlStateError(f"compare: no run could be finished; the first failed with {errors[0][2]}")
    return Study([done[t.id] for t in trials if t.id in done], errors=errors, solved=solved)


class _Clock:
    """Says how long it will take as soon as one run has shown it, and what is running."""

    def __init__(self, plan: Plan, todo: Sequence[Trial], jobs: int, say: Tell) -> None:
        self._left = {trial.id: trial for trial in todo}
        self._plan, self._jobs, self._say, self._told = plan, jobs, say, False

    def note(self, trial: Trial) -> None:
        self._left.pop(trial.id)
        more = sum(left.method != RANDOM.name for left in self._left.values())
        if self._told or trial.method == RANDOM.name or not trial.info or not more:
            return
        self._told = True
        seconds = trial.info["seconds"]
        whole = seconds * -(-more // self._jobs)
        self._say(
            f"compare: {trial.method}, seed {trial.seed} took {_time(seconds)}; {more} more runs: about "
            f"{_time(whole)}, {self._jobs} at once"
        )

    def running(self) -> str:
        now = list(self._left.values())[: self._jobs]
        return "; ".join(f"{trial.method}, seed {trial.seed}" for trial in now)


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _kept(
    trials: Sequence[Trial], directory: str | os.PathLike[str], say: Tell
) -> Iterator[tuple[str, Trial]]:
    """What a directory has of the trials already; a changed one is not among it."""
    for trial in trials:
        path = Path(directory) / f"{trial.id}.jsonl"
        if not path.is_file():
            continue
        try:
            found = Trial.read(path)
        except OwlError as error:
            say(f"{error}; {trial.method}, seed {trial.seed} runs again")
            continue
        if found.source == trial.source:
            yield trial.id, found
        else:
            say(
                f"compare: {trial.method}, seed {trial.seed} runs again: make_model, a task or the method "
                "changed since it was run"
            )


def _attempt(recall: Callable[[], Plan], tell: Tell | None, trial: Trial) -> tuple[Trial, str | None]:
    """Do one trial; an error of it ends no other."""
    try:
        return run_trial(recall(), trial, tell=tell), None
    except Exception as error:  # whatever the user's own code raises
        frames = traceback.extract_tb(error.__traceback__)
        last = frames[-1]
        return trial, f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"


def run_trial(plan: Plan, trial: Trial, *, tell: Tell | None = None) -> Trial:
    """Do one seed of one method; gives the trial with its rows.

    Rows of kind "training" say ``visit``, ``round``, ``task``, ``steps`` and ``seconds``; those of kind
    "score" ``visit``, ``task``, ``mode``, ``mean_return``, ``returns``, ``found`` and ``steps``; those of
    kind "curve" ``visit``, ``task``, ``step`` (of this visit) and ``mean_return``.

    >>> from owlrl.experiments.comparison import Plan, run_trial
    >>> from owlrl.learners import DQN
    >>> plan = Plan.of(lambda env, seed: DQN(env, seed=seed), tasks={"upright": "CartPole-v1"}, steps=100,
    ...                methods=["bare"], seeds=1, eval_episodes=2)
    >>> [row["kind"] for row in run_trial(plan, plan.trials()[0]).rows]
    ['training', 'score']
    """
    begun, method = time.time(), plan.method(trial.method)
    with repeatable(trial.seed):
        visits = _Visits(plan, method, trial.seed, tell or (lambda text: None))
        try:
            rows, modes = visits.run()
        finally:
            visits.close()
    info = {**environment(), "started": begun, "seconds": time.time() - begun}
    return replace(trial, rows=rows, modes=modes, info=info)


class _Visits:
    """The tasks of one trial, trained in turn, and all that is looked at on the way."""

    def __init__(self, plan: Plan, method: Method, seed: int, tell: Tell) -> None:
        self.plan, self.method, self.seed, self.tell = plan, method, seed, tell
        self.envs: dict[str, Any] = {}
        self.rows: list[Row] = []

    def run(self) -> tuple[list[Row], tuple[str, ...]]:
        for task in self.plan.tasks:
            self.envs[task] = self._env(task)
            seed_env(self.envs[task], self.seed)
        learned = self.method.start(self.plan.make_model, next(iter(self.envs.values())), self.seed)
        every = [(number, task) for number in range(self.plan.rounds) for task in self.plan.tasks]
        for visit, (number, task) in enumerate(every):
            self.tell(f"{self.method.name}, seed {self.seed}: {task} ({visit + 1} of {len(every)})")
            steps, start = self.plan.steps[task], time.perf_counter()
            learned.train(task, self.envs[task], steps, self._watch(learned, visit, task))
            took = time.perf_counter() - start
            row = {"kind": "training", "visit": visit, "round": number, "task": task}
            self.rows.append({**row, "steps": steps, "seconds": took})
            for other in self.plan.tasks:
                self.rows += [self._score(learned, visit, other, mode) for mode in learned.modes]
            self._finish_curve(visit, task, steps)
        return [row for row in self.rows if row], learned.modes

    def close(self) -> None:
        for env in self.envs.values():
            env.close()

    def _env(self, task: str) -> Any:
        return self.method.view(make_env(self.plan.tasks[task], self.seed))

    def _score(self, learned: Learned, visit: int, task: str, mode: str) -> Row:
        """One evaluation, in a new environment; nothing if the method cannot act there yet."""
        env = self._env(task)
        share_statistics(self.envs[task], env)
        with kept_generators(), closing(env):
            found = learned.score(
                env, task, mode=mode, episodes=self.plan.eval_episodes, seed=EVALUATION + self.seed
            )
        if found is None:
            return {}
        returns = [float(number) for number in found.returns]
        row = {"kind": "score", "visit": visit, "task": task, "mode": mode, "mean_return": found.mean}
        return {**row, "returns": returns, "found": found.found, "steps": found.steps}

    def _watch(self, learned: Learned, visit: int, task: str) -> Callable[[int], None] | None:
        every, last = self.plan.eval_every, self.plan.steps[task]
        if every is None:
            return None
        due = every

        def watch(seen: int) -> None:
            nonlocal due
            if not due <= seen < last:
                return
            due = seen - seen % every + every
            env = self._env(task)
            share_statistics(self.envs[task], env)
            with kept_generators(), closing(env):
                policy = greedy_policy(learned.model)
                found = run_episodes(
                    policy, as_env(env), episodes=self.plan.eval_episodes, seed=EVALUATION + self.seed
                )
            self.rows.append(_point(visit, task, seen, found.mean_return))

        return watch

    def _finish_curve(self, visit: int, task: str, steps: int) -> None:
        """The score right after belongs to the curve."""
        if any(row and row["kind"] == "curve" and row["visit"] == visit for row in self.rows):
            last = next(
                r
                for r in self.rows
                if r and r["kind"] == "score" and r["visit"] == visit and r["task"] == task
            )
            self.rows.append(_point(visit, task, steps, last["mean_return"]))


def _point(visit: int, task: str, step: int, score: float) -> Row:
    return {"kind": "curve", "visit": visit, "task": task, "step": step, "mean_return": score}


def _same(plan: Plan) -> Plan:
    return plan


def _read(path: str | os.PathLike[str]) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OwlValueError(f"compare: {path} cannot be read ({error}); expected a file of Python") from error


def _recalled(path: str, text: str, chosen: dict[str, Any]) -> Plan:
    """In a worker: the plan of a study file, executed here; where the file is not, from its text."""
    return _plan_of_file(path, text, chosen)[0]


def _plan_of_file(path: str, text: str, chosen: Mapping[str, Any]) -> tuple[Plan, dict[str, Any]]:
    """The plan, and arguments of `compare` beside it."""
    module = _module(os.path.abspath(path), text)
    names = ("make_model", "tasks", *CHOSEN, *OPTIONAL)
    if hasattr(module, "study"):
        told = module.study()
        if not isinstance(told, Mapping) or (odd := sorted(set(told) - set(names))):
            got = f"a {type(told).__name__}" if not isinstance(told, Mapping) else ", ".join(odd)
            raise OwlTypeError(
                f"compare: {path}: study() gave {got}; expected a dict with some of {', '.join(names)}"
            )
    else:
        told = {name: getattr(module, name) for name in names if hasattr(module, name)}
    told = {**told, **chosen}
    if missing := [name for name in ("make_model", "tasks", "steps") if name not in told]:
        raise OwlValueError(f"compare: {path} has no {' and no '.join(missing)}; define them there")
    of_plan = ("tasks", "steps", "methods", "seeds", "rounds", "eval_every", "eval_episodes")
    plan = Plan.of(told["make_model"], **{name: told[name] for name in of_plan if name in told})
    return plan, {name: value for name, value in told.items() if name in OPTIONAL}


def _module(path: str, text: str) -> Any:
    """The file as a module, executed once per process; it may import from its own directory."""
    name = f"owlrl_study_{hashlib.sha256(f'{path}{text}'.encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    if not Path(path).is_file() or _read(path) != text:  # on another machine, or changed since
        path = str(Path(tempfile.mkdtemp()) / Path(path).name)
        Path(path).write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise OwlValueError(f"compare: {path} is no file of Python; expected one that ends with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look themselves up there
    directory = str(Path(path).parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception):
            raise
        raise OwlValueError(
            f"compare: {path} cannot be executed ({type(error).__name__}: {error})"
        ) from error
    return module
