"""`Plan`: everything that determines the trials of a comparison."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import torch

from owlrl._arguments import Arguments, kind_of
from owlrl.experiments.methods import RANDOM, Method, find_method
from owlrl.experiments.models import EXPECTED
from owlrl.experiments.results import MEASURES, Trial

__all__ = ["Plan", "fingerprint"]

EVALUATION = 10_000  # added to a run's seed: no episode of the training is evaluated
PLAIN = (type(None), bool, int, float, complex, str, bytes)
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


@dataclass(frozen=True)
class Plan:
    """The checked arguments of `compare`: everything that determines a trial.

    Attributes:
        make_model: ``make_model(env, seed)``.
        tasks: a Gymnasium id or a factory by name, or a pair of them for training and evaluation.
        methods: the methods themselves.
        steps: of each visit of a task.
        seeds: of the trials.
        rounds: how often the sequence of tasks is repeated.
        order: names of tasks, one per visit, where they come in another order; empty if not.
        eval_every: steps between two points of a learning curve; None for none.
        eval_episodes: episodes of each evaluation.
        measure: what scores are: "return", or "success", the share of episodes that end with it.
        unseen: sets of tasks that are evaluated at the end and never trained in, by name.

    >>> from owlrl.experiments import Plan
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
    measure: str = "return"
    unseen: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    order: tuple[str, ...] = ()

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
        measure: Any = "return",
        unseen: Any = None,
        order: Any = None,
    ) -> Plan:
        """The plan from `compare`'s arguments; one error lists all problems."""
        arguments = Arguments("compare")
        arguments.function("make_model", make_model, "make_model(env, seed)")
        arguments.problem(_call_problem(make_model))
        named = dict(tasks) if isinstance(tasks, Mapping) else {}
        if not named or not all(isinstance(name, str) and name for name in named):
            arguments.problem(
                f"tasks is {tasks!r}; expected a mapping from names to ids or factories f(seed)"
            )
        for name, task in named.items():
            arguments.problem(_task_problem(f"task {name!r}", task))
        each = dict(steps) if isinstance(steps, Mapping) else dict.fromkeys(named, steps)
        if set(each) != set(named):
            arguments.problem(
                f"steps has {', '.join(map(repr, each))}; expected one number per task, or one for all"
            )
        each = {name: arguments.integer(f"steps of {name!r}", number) for name, number in each.items()}
        chosen, found = _seeds(arguments, seeds), _methods(arguments, methods)
        every = arguments.integer("eval_every", eval_every, none=True)
        episodes = arguments.integer("eval_episodes", eval_episodes)
        times = arguments.integer("rounds", rounds)
        arguments.choice("measure", measure, tuple(MEASURES))
        visits = tuple(order) if isinstance(order, Iterable) and not isinstance(order, str) else ()
        if order is not None and (set(visits) != set(named) or times != 1):
            arguments.problem(
                f"order is {order!r} with rounds={rounds!r}; expected names of tasks, each at least once, "
                f"and no rounds, e.g. {[*named, *list(named)[:1]]}"
            )
        sets = _unseen(arguments, unseen)
        arguments.check()
        return cls(make_model, named, found, each, chosen, times, every, episodes, measure, sets, visits)

    def settings(self) -> dict[str, Any]:
        """All that is plain data, as a trial keeps it."""
        told = {
            "tasks": list(self.tasks),
            "steps": self.steps,
            "rounds": self.rounds,
            "eval_every": self.eval_every,
            "eval_episodes": self.eval_episodes,
        }
        # what is a default is left out, so that trials of before keep their names
        told |= {"measure": self.measure} if self.measure != "return" else {}
        told |= {"order": list(self.order)} if self.order else {}
        return told | ({"unseen": {k: list(v) for k, v in self.unseen.items()}} if self.unseen else {})

    def trials(self) -> list[Trial]:
        """One per method and seed, seed after seed, and random actions last; nothing of them has been run."""
        settings, chosen = self.settings(), [*self.methods, RANDOM]
        known: tuple[Any, ...] = (self.tasks, self.unseen) if self.unseen else (self.tasks,)
        known += tuple(_own_registration(spec) for spec in registered(self) if _is_own(spec))
        sources = {m.name: fingerprint(self.make_model, *known, m) for m in chosen}
        return [
            Trial(method.name, seed, settings, sources[method.name], method.about)
            for method in sorted(chosen, key=lambda method: method is RANDOM)
            for seed in self.seeds
        ]

    def method(self, name: str) -> Method:
        """The method of that name."""
        return next(method for method in (*self.methods, RANDOM) if method.name == name)

    @property
    def visits(self) -> list[tuple[int, str]]:
        """The tasks in the order of training, each with the number of times that it came before."""
        names = self.order or tuple(self.tasks) * self.rounds
        return [(names[:k].count(task), task) for k, task in enumerate(names)]

    @property
    def total(self) -> int:
        """Steps of one trial."""
        return sum(self.steps[task] for _, task in self.visits)


def _call_problem(make_model: Any) -> str | None:
    """Whether a function does not take an environment and a seed."""
    try:
        inspect.signature(make_model).bind(None, 0)
    except ValueError:  # of C, which does not say what it takes
        return None
    except TypeError as error:
        if callable(make_model):
            return f"make_model cannot be called with two arguments ({error}); expected make_model(env, seed)"
    return None


def _seeds(arguments: Arguments, seeds: Any) -> tuple[int, ...]:
    """The seeds themselves, where how many was given."""
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        number = arguments.integer("seeds", seeds)
        seeds = range(number) if isinstance(number, int) else ()
    most = 2**31 - 1 - EVALUATION
    chosen = tuple(arguments.integer("seed", seed, least=0, most=most) for seed in seeds)
    if len(set(map(repr, chosen))) != len(chosen) or not (chosen or arguments.problems):
        arguments.problem(f"seeds are {list(chosen)}; expected at least one, each once, or how many")
    return chosen


def _methods(arguments: Arguments, methods: Any) -> tuple[Method, ...]:
    many = isinstance(methods, Iterable) and not isinstance(methods, str | Method)
    found = tuple(find_method(method) for method in (methods if many else [methods]))
    names = [method.name for method in found]
    if not found or len(set(names)) != len(names) or RANDOM.name in names:
        arguments.problem(f"methods are {names}; expected at least one, each once, and not {RANDOM.name!r}")
    return found


def _unseen(arguments: Arguments, unseen: Any) -> dict[str, Any]:
    sets: dict[str, Any] = dict(unseen or {}) if isinstance(unseen, Mapping | None) else {"": None}
    if not all(isinstance(tasks, Mapping) and tasks for tasks in sets.values()):
        arguments.problem(
            f"unseen is {unseen!r}; expected a mapping from names of sets to tasks by name, e.g. "
            "{'others': {'far': make_far}}"
        )
    for label, some in sets.items():
        for name, task in some.items() if isinstance(some, Mapping) else ():
            arguments.problem(_task_problem(f"task {name!r} of unseen {label!r}", task))
    return sets


def _task_problem(where: str, task: Any) -> str | None:
    """Whether something is neither an id nor a factory, nor a pair of these."""
    pair = isinstance(task, tuple) and len(task) == 2
    for part in task if pair else (task,):
        if isinstance(part, str):
            module, _, name = part.rpartition(":")
            try:
                if module:
                    importlib.import_module(module)
                gymnasium.spec(name)
            except (ImportError, gymnasium.error.UnregisteredEnv) as error:
                return f"{where} is {part!r}: {error}; expected an id that is registered, or 'module:id'"
            except gymnasium.error.Error:  # an id without its version, say, which `make` completes
                continue
        elif not callable(part):
            return f"{where} is {kind_of(part)}; {EXPECTED}"
    return None


def fingerprint(*things: Any) -> str:
    """Sixteen digits over functions, classes and objects, and all functions of the user's that they call.

    Code counts, and constants, defaults and values that it takes from around it; comments do not. Of
    libraries (owlrl among them) only names count.

    >>> from functools import partial
    >>> import gymnasium
    >>> from owlrl.experiments.plan import fingerprint
    >>> short, long = (partial(gymnasium.make, "CartPole-v1", max_episode_steps=n) for n in (10, 20))
    >>> fingerprint(short) == fingerprint(long)
    False
    >>> fingerprint(short) == fingerprint(partial(gymnasium.make, "CartPole-v1", max_episode_steps=10))
    True
    """
    digest = hashlib.sha256()
    for text in _texts(things, {}):
        digest.update(text.encode("utf-8", "replace"))
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def _texts(thing: Any, seen: dict[int, Any]) -> Iterator[str]:
    if isinstance(thing, PLAIN):
        yield repr(thing)
        return
    if isinstance(thing, np.ndarray | torch.Tensor | np.generic):
        array = thing.detach().cpu().numpy() if isinstance(thing, torch.Tensor) else np.asarray(thing)
        yield f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
        return
    if id(thing) in seen:
        yield "…"
        return
    seen[id(thing)] = thing  # and kept alive, or another object may get its id
    yield from _parts(thing, seen)


def _parts(thing: Any, seen: dict[int, Any]) -> Iterator[str]:
    if isinstance(thing, list | tuple):
        for item in thing:
            yield from _texts(item, seen)
    elif isinstance(thing, set | frozenset):
        yield repr(sorted(map(repr, thing)))
    elif isinstance(thing, Mapping):
        for key, item in thing.items():
            yield repr(key)
            yield from _texts(item, seen)
    elif isinstance(thing, functools.partial):
        yield from _texts((thing.func, thing.args, thing.keywords), seen)
    elif isinstance(thing, types.MethodType):
        yield from _texts((thing.__func__, thing.__self__), seen)
    elif isinstance(thing, types.FunctionType):
        yield from _function(thing, seen)
    elif isinstance(thing, type):
        yield from _class(thing, seen)
    elif isinstance(thing, types.ModuleType | types.BuiltinFunctionType):
        yield thing.__name__
    else:
        yield from _texts(type(thing), seen)
        yield from _texts(getattr(thing, "__dict__", {}), seen)
        if not hasattr(thing, "__dict__") and " at 0x" not in (text := repr(thing)):
            yield text  # a path, say


def _own(module: str | None) -> bool:
    """Whether a module is the user's: none of Python, of an installed library or of owlrl."""
    if module is None or module.partition(".")[0] in ("owlrl", "builtins"):
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or not file.startswith(LIBRARIES)


def registered(plan: Plan) -> list[gymnasium.envs.registration.EnvSpec]:
    """What Gymnasium knows of the ids among a plan's tasks; a process that does not know them is told."""
    every = [task for tasks in (plan.tasks, *plan.unseen.values()) for task in tasks.values()]
    parts = [part for task in every for part in (task if isinstance(task, tuple) else (task,))]
    ids = [part.rpartition(":")[2] for part in parts if isinstance(part, str)]
    return [gymnasium.registry[name] for name in dict.fromkeys(ids) if name in gymnasium.registry]


def _is_own(spec: gymnasium.envs.registration.EnvSpec) -> bool:
    """Whether a registered environment is made by the user's code; nothing is imported to find out."""
    if not isinstance(spec.entry_point, str):
        return _own(getattr(spec.entry_point, "__module__", None))
    module = spec.entry_point.partition(":")[0]
    if module in sys.modules:
        return _own(module)
    package = module.partition(".")[0]
    found = None if package == "owlrl" else importlib.util.find_spec(package)
    return found is not None and found.origin is not None and not found.origin.startswith(LIBRARIES)


def _own_registration(spec: gymnasium.envs.registration.EnvSpec) -> Any:
    """What makes a registered environment of the user's, and with what."""
    made: Any = spec.entry_point
    if isinstance(made, str):
        made = gymnasium.envs.registration.load_env_creator(made)
    return made, spec.kwargs, spec.max_episode_steps


def _function(function: types.FunctionType, seen: dict[int, Any]) -> Iterator[str]:
    yield function.__qualname__
    if not _own(function.__module__):
        yield str(function.__module__)
        return
    yield from _code(function.__code__, seen)
    yield from _texts((function.__defaults__, function.__kwdefaults__), seen)
    for cell in function.__closure__ or ():
        try:
            yield from _texts(cell.cell_contents, seen)
        except ValueError:  # not filled yet
            yield "empty"
    for name in sorted(_names(function.__code__)):
        if name in function.__globals__:
            yield name
            yield from _texts(function.__globals__[name], seen)


def _code(code: types.CodeType, seen: dict[int, Any]) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code(constant, seen)
        else:
            yield from _texts(constant, seen)


def _names(code: types.CodeType) -> set[str]:
    """Names that a function looks up around it, those of functions inside of it included."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _class(kind: type, seen: dict[int, Any]) -> Iterator[str]:
    yield f"{kind.__module__ if not _own(kind.__module__) else ''}{kind.__qualname__}"
    if not _own(kind.__module__):
        return
    yield from _texts(kind.__bases__, seen)
    for name, member in sorted(vars(kind).items()):
        if name in ("__dict__", "__weakref__", "__module__", "__firstlineno__", "__static_attributes__"):
            continue
        yield name
        if isinstance(member, staticmethod | classmethod):
            member = member.__func__
        elif isinstance(member, property):
            member = (member.fget, member.fset)
        yield from _texts(member, seen) if not inspect.isdatadescriptor(member) else ()
