"""`compare`: your own model, tasks and methods in one comparison, with numbers that show what helped."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gymnasium

from owlrl._arguments import Arguments, kind_of
from owlrl.envs import estimate_interference, interference, tabulate
from owlrl.errors import OwlError, OwlStateError, OwlTypeError, OwlValueError
from owlrl.experiments.config import slug
from owlrl.experiments.fanout import Backend, check_workers, fan_out
from owlrl.experiments.keeping import SAVE_EVERY, Keeper, repeatable
from owlrl.experiments.methods import RANDOM, Wrapped
from owlrl.experiments.models import make_env, seed_env
from owlrl.experiments.plan import Plan, registered
from owlrl.experiments.progress import Clock, Post, progress_bar
from owlrl.experiments.results import Trial, environment, make_directory
from owlrl.experiments.study import Study
from owlrl.experiments.visits import Visits

__all__ = ["compare", "compare_file", "diagnose", "run_trial"]

Say = Callable[[str], None]
CHOSEN = ("steps", "methods", "seeds")  # of a study file, what a command may say instead
SETTINGS = ("rounds", "order", "eval_every", "eval_episodes", "measure", "unseen")
PLACES = ("jobs", "backend", "scheduler", "output", "solved", "save_every", "note", "tensorboard")


def compare(
    make_model: Callable[[Any, int], Any],
    *,
    tasks: Mapping[str, Any],
    steps: int | Mapping[str, int],
    methods: Sequence[Any] = ("bare", "alone", "owl"),
    seeds: int | Sequence[int] = 5,
    rounds: int = 1,
    order: Sequence[str] | None = None,
    eval_every: int | None = None,
    eval_episodes: int = 20,
    measure: Literal["return", "success"] = "return",
    unseen: Mapping[str, Mapping[str, Any]] | None = None,
    jobs: int = 1,
    output: str | os.PathLike[str] | None = None,
    backend: Backend = "loky",
    scheduler: str | None = None,
    solved: Mapping[str, float] | None = None,
    note: str = "",
    progress: bool = True,
    save_every: float = SAVE_EVERY,
    tensorboard: str | os.PathLike[str] | None = None,
) -> Study:
    """Train with each method task after task, evaluate all tasks after each one, and compare the results.

    The tables show whether it helped, and `Study.verdicts` why not: the learner, forgetting or recognition.
    Every run is determined by its seed, on one thread; several processes give the same numbers as one.

    Args:
        make_model: ``make_model(env, seed)`` returns a model for that environment: anything that `OwlWrapper`
            takes (a Stable-Baselines3 model, a learner of `owlrl.learners`), or an object with
            ``train(steps)`` and ``learner``, for your own script (see `train_model`).
        tasks: in the order of training: a Gymnasium id, or a factory ``f(seed)`` of an environment or a
            vector of them, by name. A pair of ids or factories is for training and evaluation.
        steps: of each visit of a task; one number, or one per task.
        methods: of "bare", "bare, empty replay", "alone", "one head with rehearsal", "one head with history",
            "owl", "owl with EWC", "paper" and, for continuous actions, "lpg-ftw"; or your own `Method`, or
            "package.module:name" of one.
        seeds: how many, or which.
        rounds: how often the sequence of tasks is repeated.
        order: names of tasks, one per visit, instead of rounds: ``["a", "b", "a"]``.
        eval_every: steps between two points of the learning curve of the task in training; None for none.
            Forward transfer needs it.
        eval_episodes: of each evaluation, with the same seeds each time.
        measure: what scores are: the "return", or "success", the share of episodes whose last step has
            ``info["is_success"]``.
        unseen: sets of tasks that are evaluated at the end and never trained in, as ``{"set": {"task": …}}``.
        jobs: how many runs at once.
        output: directory for finished and unfinished runs (JSON lines): killed at any moment, the same call
            continues to the same numbers. Runs of a changed model, task or method are repeated.
        backend: "loky" for processes of this machine, "dask" for a Dask cluster, which executes what it is
            sent.
        scheduler: the address of the cluster's scheduler.
        solved: the return from which a task counts as learned, by task, for the verdicts.
        note: a line that is shown with the tables, e.g. a bound that is known.
        progress: show on stderr what is running and how long it will take.
        save_every: seconds of each run's work that a kill may cost.
        tensorboard: directory in which each run writes its scores, learning curve and the wrapper's
            `OwlWrapper.numbers` for TensorBoard, by method and seed (extra ``tensorboard``).

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
        order=order,
        eval_every=eval_every,
        eval_episodes=eval_episodes,
        measure=measure,
        unseen=unseen,
    )
    recall = partial(_same, plan, registered(plan))
    work = [Work(trial, partial(run_planned, recall)) for trial in plan.trials()]
    places: dict[str, Any] = {"jobs": jobs, "backend": backend, "scheduler": scheduler, "output": output}
    shown: dict[str, Any] = {"solved": solved, "progress": progress, "save_every": save_every, "note": note}
    return _run(work, **places, **shown, tensorboard=tensorboard)


def compare_file(path: str | os.PathLike[str], *, progress: bool = True, **instead: Any) -> Study:
    """`compare` as defined in a Python file; workers execute the same file.

    The file has ``make_model`` and ``tasks``, and any other arguments of `compare` as variables of these
    names; or a function ``study()`` that returns them as a dict.

    Args:
        path: the file.
        progress: show on stderr what is running.
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
    work, said = file_work(path, **instead)
    return _run(work, progress=progress, **{name: said[name] for name in PLACES if name in said})


def file_work(path: str | os.PathLike[str], **instead: Any) -> tuple[list[Work], dict[str, Any]]:
    """The trials of a study's file as `run_trials` takes them, and its other arguments of `compare`."""
    text = _read(path)
    chosen = {name: value for name, value in instead.items() if value is not None}
    for_plan = {name: value for name, value in chosen.items() if name in CHOSEN}
    plan, said = _plan_of_file(os.fspath(path), text, for_plan)
    recall = partial(_recalled, os.path.abspath(path), text, for_plan)
    return [Work(trial, partial(run_planned, recall)) for trial in plan.trials()], {**said, **chosen}


class Work(NamedTuple):
    """A trial without rows, and the function that runs it, called with the options of `run_trial`."""

    trial: Trial
    do: Callable[..., Trial]


def run_planned(recall: Callable[[], Plan], trial: Trial, **options: Any) -> Trial:
    """`run_trial`, with the plan that a function makes in the process that does it."""
    return run_trial(recall(), trial, **options)


def _run(
    work: Sequence[Work], *, solved: Mapping[str, float] | None = None, note: str = "", **places: Any
) -> Study:
    _check_solved(solved, work[0].trial.settings["tasks"])
    done, errors = run_trials(work, **places)
    if errors and all(trial.method == RANDOM.name for trial in done):
        raise OwlStateError(f"compare: no run could be finished; the first failed with {errors[0][2]}")
    return Study(done, errors=errors, solved=solved, note=note)


def _check_solved(solved: Any, tasks: Sequence[str]) -> None:
    """Raise unless ``solved`` has returns of some of the tasks."""
    arguments = Arguments("compare")
    if solved is not None and not (isinstance(solved, Mapping) and set(solved) <= set(tasks)):
        arguments.problem(f"solved is {solved!r}; expected returns by task, of {', '.join(tasks)}")
    for task, needed in solved.items() if isinstance(solved, Mapping) else ():
        arguments.number(f"solved of {task!r}", needed)
    arguments.check()


def run_trials(
    work: Sequence[Work],
    *,
    output: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    backend: Backend = "loky",
    scheduler: str | None = None,
    progress: bool = True,
    save_every: float = SAVE_EVERY,
    tensorboard: str | os.PathLike[str] | None = None,
    where: str = "compare",
) -> tuple[list[Trial], list[tuple[str, int, str]]]:
    """Run what a directory does not have yet, and write every trial as soon as it is done.

    The options are those of `compare`; ``where`` is the caller, for messages. Returns all finished trials,
    in the order of ``work``, and of the others method, seed and error.
    """
    check_workers(where, jobs=jobs, backend=backend, scheduler=scheduler)
    arguments = Arguments(where)
    arguments.number("save_every", save_every, least=0)
    arguments.check()
    say: Say = _say if progress else (lambda text: None)
    trials = [each.trial for each in work]
    for name, directory in {"output": output, "tensorboard": tensorboard}.items():
        if directory is not None:
            make_directory(directory, name)
    done = {} if output is None else kept_trials(trials, output, say, where=where)
    todo = [each for each in work if each.trial.id not in done]
    steps = {each.trial.id: each.trial.steps for each in todo}
    if todo:
        each = " to ".join(f"{number:,}" for number in sorted({min(steps.values()), max(steps.values())}))
        say(f"{where}: {len(todo)} runs of {len(trials)} to do, {each} steps each, {jobs} at once")
    errors: list[tuple[str, int, str]] = []
    long = {t.id: (t.method, steps[t.id]) for t in trials if t.id in steps and t.method != RANDOM.name}
    with tempfile.TemporaryDirectory() as posts, progress_bar(len(todo), progress) as bar:
        places = _Places(_absolute(output), save_every, _absolute(tensorboard), posts if progress else None)
        with (
            Clock(long, jobs, posts, bar, say, where=where) as clock,
            closing(fan_out(partial(_attempt, places), todo, jobs=jobs, scheduler=scheduler)) as results,
        ):
            for trial, error in results:
                if error is None:
                    done[trial.id] = trial
                    if output is not None:
                        trial.write(output)
                        places.remove(trial)
                else:
                    errors.append((trial.method, trial.seed, error))
                    say(f"{where}: {trial.method}, seed {trial.seed} failed: {error}")
                clock.done(trial.id, trial.info["seconds"] if trial.info else None)
                bar.update(1)
    return [done[trial.id] for trial in trials if trial.id in done], errors


def _absolute(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.path.abspath(path)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def kept_trials(
    trials: Sequence[Trial],
    directory: str | os.PathLike[str],
    say: Say = lambda text: None,
    *,
    where: str = "compare",
) -> dict[str, Trial]:
    """The trials that a directory already has, by id, without changed or damaged ones."""
    kept = {}
    for trial in trials:
        path = Path(directory) / f"{trial.id}.jsonl"
        if not path.is_file():
            continue
        try:
            found = Trial.read(path)
        except OwlError as error:
            say(f"{error}; {trial.method}, seed {trial.seed} runs again")
            continue
        if found.same(trial):
            kept[trial.id] = found
        else:
            say(
                f"{where}: {trial.method}, seed {trial.seed} runs again: make_model, a task or the method "
                "changed since it was run"
            )
    return kept


def list_trials(trials: Iterable[Trial], directory: str | os.PathLike[str]) -> None:
    """Print which trials there are, and which of them a directory has."""
    every = list(trials)
    done = kept_trials(every, directory)
    for trial in every:
        print("done   " if trial.id in done else "missing", trial.id)


def _attempt(places: _Places, work: Work) -> tuple[Trial, str | None]:
    """Run one trial; its error does not end the others."""
    trial = work.trial
    try:
        return work.do(trial, **places.options(trial)), None
    except Exception as error:  # whatever the user's own code raises
        return trial, _told(error)


def _told(error: Exception) -> str:
    """An error and where it was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"


class _Places(NamedTuple):
    """Where trials are kept while they are under way and how often; where they tell what they do."""

    output: str | None
    seconds: float
    tensorboard: str | None
    posts: str | None

    def options(self, trial: Trial) -> dict[str, Any]:
        """Of `run_trial`, for the process that runs the trial."""
        return {
            "tell": Post(_in(self.posts, trial.id)),
            "resume": _in(self.output, f"{trial.part}.part"),
            "save_every": self.seconds,
            "tensorboard": _in(self.tensorboard, f"{slug(trial.method)}/seed-{trial.seed}"),
        }

    def remove(self, trial: Trial) -> None:
        """The trial is done: neither its file nor one of what it was before is needed."""
        for path in Path(self.output).glob(f"{trial.id}*.part") if self.output is not None else ():
            path.unlink(missing_ok=True)


def _in(directory: str | None, name: str) -> Path | None:
    """A path in a directory, unless that is not to be seen, as on another machine."""
    return None if directory is None or not Path(directory).is_dir() else Path(directory) / name


def run_trial(
    plan: Plan,
    trial: Trial,
    *,
    tell: Callable[[str, int], None] | None = None,
    resume: str | os.PathLike[str] | None = None,
    save_every: float = SAVE_EVERY,
    tensorboard: str | os.PathLike[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Trial:
    """Run one seed of one method; returns the trial with its rows.

    Rows of kind "training" say ``visit``, ``round``, ``task``, ``steps`` and ``seconds``; those of kind
    "score" ``visit``, ``task``, ``mode``, ``mean_return``, ``returns``, ``found``, ``steps``, ``success``
    where there is such a thing, and ``set`` of tasks that are not trained in; those of kind "curve"
    ``visit``, ``task``, ``step`` (of this visit) and ``mean_return``.

    Args:
        plan: what the trial is of.
        trial: which one.
        tell: called with what is being done, and how many steps of the trial are done.
        resume: a file in which unfinished work is kept; after a kill, the same call continues.
        save_every: seconds of work that a kill may cost.
        tensorboard: directory for its numbers.
        checkpoint: where to write the result of training, by `Learned.save`.

    >>> from owlrl.experiments import Plan, run_trial
    >>> from owlrl.learners import DQN
    >>> plan = Plan.of(lambda env, seed: DQN(env, seed=seed), tasks={"upright": "CartPole-v1"}, steps=100,
    ...                methods=["bare"], seeds=1, eval_episodes=2)
    >>> [row["kind"] for row in run_trial(plan, plan.trials()[0]).rows]
    ['training', 'score']
    """
    method = plan.method(trial.method)
    keeper = Keeper(resume, [trial.id, trial.source], seconds=save_every)
    with repeatable(trial.seed):
        visits = Visits(plan, method, trial.seed, keeper, tell or (lambda text, steps: None), tensorboard)
        try:
            visits.run()
            if checkpoint is not None:
                visits.learned.save(checkpoint)
        finally:
            visits.close()
    info = {**environment(), **keeper.times, **visits.learned.info()}
    return replace(trial, rows=visits.rows, modes=visits.learned.modes, info=info)


def _same(plan: Plan, known: Sequence[gymnasium.envs.registration.EnvSpec]) -> Plan:
    """The plan itself, in a process in which its ids of environments are known."""
    for spec in known:
        gymnasium.registry.setdefault(spec.id, spec)
    return plan


def _read(path: str | os.PathLike[str]) -> str:
    try:
        if Path(path).exists() and not Path(path).is_file():  # some devices never end
            raise OSError("a directory" if Path(path).is_dir() else "no file, but a device or a pipe")
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OwlValueError(f"compare: {path} cannot be read ({error}); expected a file of Python") from error


def _recalled(path: str, text: str, chosen: dict[str, Any]) -> Plan:
    """In a worker: the plan of a study file, executed here; where the file is not, from its text."""
    return _plan_of_file(path, text, chosen)[0]


def _plan_of_file(path: str, text: str, chosen: Mapping[str, Any]) -> tuple[Plan, dict[str, Any]]:
    """The plan, and arguments of `compare` beside it."""
    module = _module(os.path.abspath(path), text)
    names = ("make_model", "tasks", *CHOSEN, *SETTINGS, *PLACES)
    if hasattr(module, "study"):
        told = module.study()
        if not isinstance(told, Mapping) or (odd := sorted(set(told) - set(names))):
            got = kind_of(told) if not isinstance(told, Mapping) else ", ".join(odd)
            raise OwlTypeError(
                f"compare: {path}: study() returned {got}; expected a dict with some of {', '.join(names)}"
            )
    else:
        told = {name: getattr(module, name) for name in names if hasattr(module, name)}
    own = {method.name: method for method in told.get("methods", ()) if hasattr(method, "name")}
    told = {**told, **chosen}
    if isinstance(told.get("methods"), str):
        told["methods"] = [told["methods"]]
    if "methods" in told:  # a name may be that of one that only the file has
        told["methods"] = [own.get(m, m) if isinstance(m, str) else m for m in told["methods"]]
    if missing := [name for name in ("make_model", "tasks", "steps") if name not in told]:
        raise OwlValueError(f"compare: {path} has no {' and no '.join(missing)}; define them there")
    of_plan = ("tasks", *CHOSEN, *SETTINGS)
    plan = Plan.of(told["make_model"], **{name: told[name] for name in of_plan if name in told})
    return plan, {name: value for name, value in told.items() if name in PLACES}


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
    directory = Path(path).resolve().parent
    if str(directory) not in sys.path and directory != Path(__file__).parent:
        sys.path.append(str(directory))  # behind what is installed: a study may be called like a library
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


def diagnose(path: str | os.PathLike[str], *, steps: int | None = None, seed: int = 0) -> str:
    """How much the tasks of a study file (see `compare_file`) contradict each other, in a sentence.

    Tasks that `tabulate` can write out (grids) are compared exactly, without training. Otherwise
    the study's model is wrapped and trained on each task, and its heads are compared on the rows it
    remembers, which needs a Q-network.

    Args:
        path: the file.
        steps: of training on each task, where it is needed; the file's if left out.
        seed: of tables and training.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from owlrl.experiments import diagnose
    >>> path = Path(tempfile.mkdtemp()) / "my_study.py"
    >>> _ = path.write_text('''
    ... from functools import partial
    ... import gymnasium
    ... tasks = {str(k): partial(gymnasium.make, "owlrl/Crossroads-v0", arms=2, task=k) for k in range(2)}
    ... steps, make_model = 1_000, print
    ... ''')
    >>> print(diagnose(path))  # doctest: +NORMALIZE_WHITESPACE
    2 tasks share 28 observations, 100% contradictory; one policy solves 1 (exact), own policies 2;
    mean return 0.48 instead of 0.961
    """
    arguments = Arguments("diagnose")
    seed = arguments.integer("seed", seed, least=0)
    arguments.check()
    plan, _ = _plan_of_file(os.fspath(path), _read(path), {} if steps is None else {"steps": steps})
    if len(plan.tasks) < 2:
        raise OwlValueError(
            f"diagnose: {path} has the task {', '.join(plan.tasks)} alone; expected at least 2"
        )
    try:
        return _diagnosis(plan, seed)
    except OwlError:
        raise
    except Exception as error:  # whatever the user's own code raises
        raise OwlStateError(f"diagnose: {path} failed with {_told(error)}") from error


def _diagnosis(plan: Plan, seed: int) -> str:
    with ExitStack() as stack, repeatable(seed):
        envs = {task: make_env(made, seed) for task, made in plan.tasks.items()}
        for env in envs.values():
            stack.callback(env.close)
            seed_env(env, seed)
        try:
            return str(interference(*(tabulate(env, seed=seed) for env in envs.values())))
        except (OwlTypeError, OwlValueError) as error:
            why = " ".join(str(error).partition(";")[0].split())
        learned: Any = Wrapped("owl").start(plan.make_model, next(iter(envs.values())), seed)
        if list(learned.owl.learner.networks) != ["q"]:
            raise OwlTypeError(
                f"diagnose: the tasks cannot be tabulated ({why}), and the model has the networks "
                f"{', '.join(learned.owl.learner.networks)}; expected a Q-network (discrete actions), "
                "whose heads can be compared: with others, compare the methods bare, alone and owl"
            )
        for task, env in envs.items():
            learned.train(task, env, plan.steps[task])
        owl = learned.owl
        found = estimate_interference(owl, [owl.memory[task].rows() for task in envs])
    lost = ", ".join(f"{task} {value:.3g}" for task, value in zip(envs, found.lost, strict=True))
    return (
        f"no tables ({why}); by heads trained for {plan.total:,} steps: on {found.contradiction:.0%} of "
        f"remembered observations no action is good for all tasks; one shared action costs {lost} in value"
    )
