"""`Session`: the state of one of our own runs, on levels with a DQN and on Pendulums with a SAC."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from owlrl import (
    AdaptivePolicy,
    MultiHeadQ,
    OracleSelector,
    OwlWrapper,
    RehearsalReplay,
    SharedReplay,
    TaskScopedReplay,
)
from owlrl.acting.episodes import Evaluation, run_episodes
from owlrl.checkpoint import load_state, save_state, set_rng_state
from owlrl.envs import Table, TaskSpec
from owlrl.envs.task_sets import PENDULUM
from owlrl.envs.vector import ArrayVectorEnv
from owlrl.errors import OwlError, OwlStateError, OwlValueError
from owlrl.experiments.config import Run
from owlrl.experiments.least_tried import LeastTried
from owlrl.experiments.methods import Learned, MakeModel, Method, Row, Score
from owlrl.experiments.metrics import identification_accuracy, steps_to_identify
from owlrl.experiments.models import Envs, Watch, train_model
from owlrl.experiments.plan import EVALUATION, Plan
from owlrl.experiments.policies import ORACLE, make_evidence, make_selector, parse_policy
from owlrl.experiments.tasks import SideBySide, resolve_unseen, table_of, vector_env
from owlrl.heads.modes import eval_mode
from owlrl.learners import DQN, SAC
from owlrl.protocols import MultiHead
from owlrl.wrapper_state import restore_wrapper, wrapper_state

__all__ = ["Session", "evaluate", "final_angles"]

FloatArray = npt.NDArray[np.float64]
Replay = TaskScopedReplay | SharedReplay | RehearsalReplay
ONE_HEAD = "every task"  # what a learner with one head takes all tasks for
FOLLOWED = ("hedge+model", "released+td-raw")  # how these two do is looked at after each task as well
CONTROL_FOLLOWED = ("hedge+model", "hedge+reward", "paper+nll-raw", "paper+td-squared")
TRACED = (
    "hedge+model",
    "hedge+td",
    "hedge+reward",
    "released+td-raw",
)  # of these one episode per task is kept for pictures
CONTROL_TRACED = (ORACLE, "hedge+reward", "hedge+nll", "paper+nll-raw", "paper+td-squared")


def plan_of(run: Run) -> Plan:
    """What `compare` does for a run: one method, one seed, and levels that are not trained in."""
    specs, scale = run.specs, run.preset.goal_scale
    trained = partial(_make_env, copies=run.num_envs, goal_scale=scale, count_bonus=run.preset.count_bonus)
    asked = partial(_make_env, copies=run.episodes, goal_scale=scale)
    unseen = {text: unseen_specs(run, text) for text in run.unseen}
    return Plan(
        make_model=partial(_make_learner, run),
        tasks={name: (partial(trained, spec), partial(asked, spec)) for name, spec in specs.items()},
        methods=(_OfRun(run),),
        steps={name: run.frames_of(name) for name in specs},
        seeds=(run.seed,),
        rounds=run.rounds,
        eval_every=run.eval_every,
        eval_episodes=run.episodes,
        measure="return" if run.control else "success",
        unseen={
            text: {k: partial(asked, spec) for k, spec in found.items()} for text, found in unseen.items()
        },
    )


def unseen_specs(run: Run, text: str) -> dict[str, TaskSpec]:
    """Levels that are none of those trained on, e.g. ``"S9N1:100"``, with as many actions."""
    trained = table_of(next(iter(run.specs.values())), goal_scale=run.preset.goal_scale)
    return resolve_unseen(text, run.specs, num_actions=trained.num_actions)


def _make_env(spec: Any, *, copies: int, goal_scale: float, count_bonus: float = 0.0) -> ArrayVectorEnv:
    """Copies of a level as tables, with the learner's bonus in training; or of a Pendulum."""
    task = spec if spec.env_id == PENDULUM else table_of(spec, goal_scale=goal_scale)
    return vector_env(task, copies, count_bonus=count_bonus)


class _OfRun(Method):
    """The method of a run, which makes its own model."""

    def __init__(self, run: Run) -> None:
        self.run, self.name, self.about = run, run.method, run.about

    def start(self, make_model: MakeModel, env: Any, seed: int) -> Learned:
        return Session(self.run, env)


class Session(Learned):
    """An agent, its replay, its regularizer and its evidence, as defined by a `Run`.

    The agent is a DQN on levels, and a SAC where actions are continuous. Its modes are the run's policies.

    Args:
        run: what was asked for.
        env: of the first task, to train in; a new one if left out.

    Attributes:
        run: what was asked for.
        tasks: by name and in order; levels as tables, poles as their specifications.
        agent: the learner.
        learner: the agent as `OwlWrapper` sees it.
        evidence: all evidence that the run's policies need.
        heads: the head of each task that was learned.
        traced: policies of which one episode per task is kept at the end.

    >>> from owlrl.experiments import Run, Session
    >>> session = Session(Run("Crossroads-2", policies=("oracle",)))
    >>> session.train("crossroads-0", session.env("crossroads-0"), 200)
    >>> session.heads
    {'crossroads-0': 0}
    """

    watching, together = ORACLE, True

    def __init__(self, run: Run, env: ArrayVectorEnv | None = None) -> None:
        self.run = run
        scale = run.preset.goal_scale
        self.tasks: dict[str, Any] = {
            name: spec if run.control else table_of(spec, goal_scale=scale)
            for name, spec in run.specs.items()
        }
        actions = set() if run.control else {table.num_actions for table in self.tasks.values()}
        if len(actions) > 1:
            raise OwlValueError(
                f"Session: the tasks have {sorted(actions)} actions; expected the same number in all"
            )
        self.modes = run.acting
        followed = CONTROL_FOLLOWED if run.control else FOLLOWED
        self.followed = (ORACLE, *(name for name in followed if name in run.acting))
        self.traced: tuple[str, ...] = CONTROL_TRACED if run.control else TRACED
        self.model = self.agent = _make_learner(run, env or self.env(next(iter(self.tasks))), run.seed)
        self.learner = self.agent.describe(init=run.recipe.init)
        self._first_loop = self.learner.per_task["loop"].state_dict()
        needed = {parse_policy(name, control=run.control).evidence for name in run.acting}
        self.evidence = make_evidence(needed, seed=run.seed, control=run.control)
        self.heads: dict[str, int] = {}
        self._open: str | None = None  # the task whose visit has begun and not been ended
        self._head = 0  # that is trained
        self._unfinished: dict[str, Any] | None = None  # where the learner stood in it, when it was loaded
        self._visits: dict[str, int] = {}
        self._exploration: dict[str, dict[str, Any]] = {}
        self._owl: OwlWrapper | None = None
        if run.recipe.heads or run.control:
            self._owl = OwlWrapper(self.learner, regularizer=_regularizer(run), evidence=self.evidence)
        if run.recipe.heads and run.recipe.replay == "rehearsal" and isinstance(self.agent, DQN):
            self.agent.head_of = self._head_of_batch

    def env(self, task: str) -> ArrayVectorEnv:
        """The task as it is trained in: copies of it, with the learner's bonus."""
        return vector_env(self.tasks[task], self.run.num_envs, count_bonus=self.run.preset.count_bonus)

    def train(self, task: str, env: Any, steps: int, watch: Watch | None = None) -> None:
        """One visit of a task, from its beginning or from where it was interrupted."""
        goes_on, self._open = self._unfinished is not None, task
        if self._owl is None:
            with self._one_head(task, env):
                train_model(self.agent, None, steps, watch=watch)
        else:
            with self._owl.task(task if self.run.recipe.heads else ONE_HEAD, env=env) as record:
                if isinstance(self.agent, DQN):
                    self._restart_exploration(self.agent, task, goes_on=goes_on)
                self._unfinished, self._head = None, record.head
                train_model(self.agent, None, steps, watch=watch)
        self.heads[task] = self._head
        self._open = None
        self._visits[task] = self._visits.get(task, 0) + 1

    def numbers(self) -> dict[str, float]:
        """Drift, pull and memory, as the wrapper has them."""
        return {} if self._owl is None else self._owl.numbers()

    def info(self) -> dict[str, Any]:
        """How long compiling took, where the update is compiled."""
        return {"compile_seconds": self.agent.compile_seconds} if self.run.compile else {}

    def policy_of(self, name: str, truth: Sequence[str]) -> AdaptivePolicy | LeastTried:
        """A policy by name; the oracle is given ``truth``, the task of each environment it will act in."""
        heads = self.run.recipe.heads
        if heads and not self.heads:
            raise OwlStateError("Session.policy_of: no task has been learned yet")
        selector, evidence, least_tried = parse_policy(name, control=self.run.control)
        arms = dict(self.heads) if heads else {ONE_HEAD: 0}
        if selector != ORACLE:
            chosen, found = make_selector(selector, self.run.seed), self.evidence.part(evidence)
        elif unknown := sorted(set(truth) - set(arms)) if heads else []:
            raise OwlValueError(f"Session.policy_of: the oracle has no head for {', '.join(unknown)}")
        else:
            places = {task: place for place, task in enumerate(arms)}
            told = np.array([places.get(task, 0) for task in truth], dtype=np.int64)
            chosen, found = OracleSelector(told), None
        policy = AdaptivePolicy(self.learner, chosen, found, arms, trace=True)
        if not least_tried or not isinstance(self.agent, DQN):
            return policy
        return LeastTried(policy, self.agent.num_actions, seed=self.run.seed)

    def rows(self, envs: Mapping[str, Any], *, mode: str, episodes: int, seed: int, last: bool) -> list[Row]:
        """A row of kind "score" for each task in a way to act; at the end also "trace" and "in-a-row".

        A "trace" is one episode of each learned task, and of the first of those that were not learned.

        Tasks with continuous actions have no ``success``. They have ``returns`` of all episodes and
        ``final_angles`` of the pole instead, and ``angles`` in a trace, in degrees.
        """
        told = mode.startswith(ORACLE) and self.run.recipe.heads  # it needs a head for the task
        tasks = [task for task in envs if task in self.heads or not (told or task in self.tasks)]
        if not tasks:
            return []
        chosen: dict[str, Any] = {"mode": mode, "episodes": episodes, "seed": seed}
        policy, found = self._side_by_side([envs[task] for task in tasks], tasks, **chosen, times=1)
        acted, rows = _Acted(policy, found), []
        for place, task in enumerate(tasks):
            lanes = np.arange(place * episodes, (place + 1) * episodes)
            row: Row = {"kind": "score", "task": task, "mode": mode, "episodes": episodes}
            row |= acted.outcome(lanes, control=self.run.control)
            right = list(self.heads).index(task) if self.run.recipe.heads and task in self.heads else None
            rows.append({**row, **acted.identified(lanes, right)})
            if last and mode in self.traced and (task in self.heads or task == tasks[0]):
                rows.append(
                    {"kind": "trace", "task": task, "mode": mode, **acted.trace(lanes, list(self.heads))}
                )
        if last and self.run.consecutive:
            known = [task for task in tasks if task in self.heads]
            rows += self._in_a_row(envs, known, **chosen) if known else []
        return rows

    def _side_by_side(
        self,
        envs: Sequence[Any],
        tasks: Sequence[str],
        *,
        mode: str,
        episodes: int,
        seed: int,
        times: int = 1,
    ) -> tuple[_Seen, Evaluation]:
        """Episodes in each environment of all tasks at once, ``times`` in a row with kept evidence."""
        policy = _Seen(self.policy_of(mode, [task for task in tasks for _ in range(episodes)]))
        count = times * episodes * len(tasks)
        return policy, run_episodes(policy, SideBySide(envs), episodes=count, seed=seed, keep_evidence=True)

    def _in_a_row(self, envs: Mapping[str, Any], tasks: list[str], **chosen: Any) -> list[Row]:
        """Several episodes in a row with kept evidence, for tasks that are recognised only at their end."""
        times, episodes = self.run.consecutive, chosen["episodes"]
        _, found = self._side_by_side([envs[task] for task in tasks], tasks, **chosen, times=times)
        assert found.success is not None and found.env is not None
        order = np.argsort(found.env, kind="stable")
        success = found.success[order].reshape(len(tasks), episodes, times)
        return [
            {
                "kind": "in-a-row",
                "task": task,
                "mode": chosen["mode"],
                "episodes": episodes,
                "by_episode": of_task.mean(axis=0).tolist(),
                "failures": float((~of_task).sum(axis=1).mean()),
            }
            for task, of_task in zip(tasks, success, strict=True)
        ]

    def watched(self, training: str) -> Sequence[str]:
        """All that was learned, and what is in training."""
        return list(dict.fromkeys([*self.heads, training]))

    def look(self, env: Any, task: str, *, episodes: int, seed: int) -> Score:
        """How well the network that the agent would hand over now does a task with its head."""
        head = self._head if task == self._open else self.heads[task]
        if isinstance(self.agent, DQN):
            network = self.agent.target if self.agent.config.hand_over else self.agent.q
            return greedy_score(network, head, env.table)
        told = AdaptivePolicy(self.learner, OracleSelector(0), None, {task: head})
        return Score.of(run_episodes(told, env, episodes=episodes, seed=seed))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what acting needs to a file, atomically: networks, heads and evidence; no replay."""
        tasks = {} if self._owl is None else self._owl.tasks
        state = {"run": self.run.to_json(), "heads": self.heads}
        save_state(
            path, {**state, "learner": wrapper_state(self.learner, tasks, {"evidence": self.evidence})}
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Session:
        """A session that acts as the saved one did; it cannot continue learning."""
        state = load_state(path)
        if not isinstance(state, dict) or set(state) != {"run", "heads", "learner"}:
            raise OwlValueError(
                f"Session.load: {path} is a checkpoint of something else; expected a session's"
            )
        try:
            session = cls(Run.from_json(state["run"]))
            parts = {"evidence": session.evidence}
            records = restore_wrapper(session.learner, state["learner"], parts, acting=True)
            if session._owl is not None:
                session._owl.tasks.update(records)
            session.heads = {task: int(head) for task, head in state["heads"].items()}
        except (RuntimeError, TypeError, KeyError, ValueError, AttributeError, IndexError) as error:
            if isinstance(error, OwlError) and str(path) in str(error):
                raise
            what = " ".join(f"{error}".split())
            raise OwlValueError(
                f"{path} does not fit this version of owlrl ({type(error).__name__}: {what[:200]}); train "
                "again"
            ) from error
        return session

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue learning, bit for bit; inside a task, except its environment."""
        alone = {"replay": self.agent.replay}  # of a learner that is not wrapped
        return {
            "learner": wrapper_state(self.learner, {}, alone)
            if self._owl is None
            else self._owl.state_dict(),
            "heads": dict(self.heads),
            "visits": dict(self._visits),
            "exploration": dict(self._exploration),
            "open": self._open,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], envs: Envs, task: str) -> None:
        """Continue from what ``state_dict`` returned; for a session that is new."""
        learner = state_dict["learner"]
        if self._owl is None:
            restore_wrapper(self.learner, learner, {"replay": self.agent.replay})
            set_rng_state(learner["rng"])
        else:
            self._owl.load_state_dict(learner)
        self._unfinished = None if state_dict["open"] is None else learner["per_task"]
        self.heads = dict(state_dict["heads"])
        self._visits = dict(state_dict["visits"])
        self._exploration = dict(state_dict["exploration"])

    @contextmanager
    def _one_head(self, name: str, env: ArrayVectorEnv) -> Iterator[None]:
        """What the wrapper does for exploration and replay, for a learner that keeps its one head."""
        assert isinstance(self.agent, DQN)  # a SAC with one head is wrapped
        epsilon, replay, loop = self.agent.epsilon, self.agent.replay, self.learner.per_task["loop"]
        self.agent.set_env(env)
        if self._unfinished is None:
            replay.begin_task(name)
            epsilon.load_state_dict(self._exploration.get(name, {"seen": 0}))
            loop.load_state_dict(self._first_loop)
        else:  # all else was loaded; the loop needs its environment
            loop.load_state_dict(self._unfinished["loop"]["state"])
            self._unfinished = None
        yield
        self.agent.hand_over()
        self._exploration[name] = epsilon.state_dict()
        replay.end_task()

    def _restart_exploration(self, agent: DQN, name: str, *, goes_on: bool) -> None:
        rate = self.run.recipe.epsilon_restart
        agent.epsilon.frames = self.run.config.epsilon_frames
        if rate is not None and self._visits.get(name, 0) > 0:
            agent.epsilon.seen = agent.epsilon.seen if goes_on else 0
            agent.epsilon.frames = max(1, round(self.run.config.epsilon_frames / rate))

    def _head_of_batch(self, batch: Any) -> int | None:
        assert self._owl is not None
        return None if batch.task is None else self._owl.tasks[batch.task].head


def evaluate(
    session: Session,
    tasks: Mapping[str, Any],
    policies: Sequence[str],
    *,
    episodes: int = 16,
    label: str = "",
) -> list[Row]:
    """Episodes of every task with every policy after training; rows of `Session.rows`, by policy.

    The oracle is left out for tasks that have no head. ``tasks`` are a session's ``tasks``, or the like;
    ``label`` names them if they are others.

    >>> from owlrl.experiments import Run, Session, evaluate
    >>> session = Session(Run("Crossroads-2", method="experience-replay", arguments={"max_steps": 5}))
    >>> session.train("crossroads-0", session.env("crossroads-0"), 32)
    >>> [row["success"] for row in evaluate(session, session.tasks, ["oracle"], episodes=2)]
    [0.0]
    """
    chosen: dict[str, Any] = {"episodes": episodes, "seed": EVALUATION + session.run.seed, "last": True}
    more = {"visit": 0, **({"set": label} if label else {})}
    envs = {name: vector_env(task, episodes) for name, task in tasks.items()}
    return [{**row, **more} for policy in policies for row in session.rows(envs, mode=policy, **chosen)]


def greedy_score(network: MultiHead, head: int, table: Table) -> Score:
    """The score of one head in a task, acting greedily: one episode, since nothing is random."""
    device = next(network.module.parameters()).device
    seen = torch.tensor(table.observations, device=device)
    with torch.no_grad(), eval_mode(network.module):
        actions = network(seen, head=head).argmax(-1).cpu().numpy()
    state, total = table.start, 0.0
    for step in range(1, (table.max_episode_steps or table.num_states) + 1):
        action = actions[table.obs_index[state]]
        total += float(table.reward_at(state, action, step))
        if table.terminated[state, action]:
            return Score(np.array([total]), success=float(table.goal[state, action]))
        state = int(table.next_state[state, action])
    return Score(np.array([total]), success=0.0)


class _Seen:
    """A policy that keeps the observations it was led to, (T, E, n), where they are vectors."""

    def __init__(self, policy: AdaptivePolicy | LeastTried) -> None:
        self.policy, self.finals = policy, list[np.ndarray]()
        self.reset, self.act, self.tasks = policy.reset, policy.act, policy.tasks

    def observe(self, *transition: Any, mask: np.ndarray | None = None) -> None:
        self.policy.observe(*transition, mask=mask)
        if np.ndim(transition[3]) == 2:  # of a pole, not of a grid
            self.finals.append(np.asarray(transition[3]))

    @property
    def arm(self) -> int | np.ndarray:
        return self.policy.arm

    @property
    def probabilities(self) -> np.ndarray:
        return self.policy.probabilities


class _Acted:
    """First episodes in many environments, (T, E), and what is noted of some of them."""

    def __init__(self, policy: _Seen, found: Evaluation) -> None:
        assert found.env is not None
        first = np.array([np.flatnonzero(found.env == lane)[0] for lane in range(int(found.env.max()) + 1)])
        self.returns, self.lengths = found.returns[first], found.lengths[first]
        self.success = None if found.success is None else found.success[first]
        self.steps = policy.policy.trace[: int(self.lengths.max())]
        self.arms = np.array([step.arm for step in self.steps], dtype=np.int64)
        seen = np.array(policy.finals)
        self.angles = np.arctan2(seen[..., 1], seen[..., 0]).astype(np.float64) if seen.ndim == 3 else None

    def outcome(self, lanes: npt.NDArray[np.int64], *, control: bool) -> Row:
        """Means over environments; of poles all returns and angles."""
        returns = self.returns[lanes]
        row: Row = {"mean_return": float(returns.mean()), "mean_length": float(self.lengths[lanes].mean())}
        if control and self.angles is not None:
            angles = final_angles(self.angles[:, lanes]).round(1).tolist()
            return {**row, "returns": returns.round(2).tolist(), "final_angles": angles}
        return {**row, "success": 0.0 if self.success is None else float(self.success[lanes].mean())}

    def identified(self, lanes: npt.NDArray[np.int64], right: int | None) -> Row:
        """Whether the right head acted in the end, and from which step on; None if there is no right one."""
        if right is None:
            return {"found": None, "steps": None}
        arms, lengths, truth = self.arms[:, lanes], self.lengths[lanes], np.full(len(lanes), right)
        steps = float(steps_to_identify(arms, lengths, truth).mean())
        return {"found": identification_accuracy(arms, lengths, truth), "steps": steps}

    def trace(self, lanes: npt.NDArray[np.int64], heads: list[str]) -> Row:
        """One episode: of poles the one that starts nearest to hanging down."""
        nearest = 0 if self.angles is None else int(np.abs(self.angles[0, lanes]).argmax())
        lane = int(lanes[nearest])
        steps = self.steps[: int(self.lengths[lane])]
        row: Row = {"heads": heads, "arms": self.arms[: len(steps), lane].tolist()}
        row["probabilities"] = [step.probabilities[lane].round(4).tolist() for step in steps]
        row["losses"] = [np.asarray(step.losses)[lane].astype(np.float64).round(4).tolist() for step in steps]
        if self.angles is not None:
            return {**row, "angles": np.degrees(self.angles[:, lane]).round(1).tolist()}
        return {**row, "success": self.success is not None and bool(self.success[lane])}


def final_angles(angles: FloatArray, *, last: int = 50) -> FloatArray:
    """Mean direction of the pole over the last steps, in degrees; (T, E) radians → (E,).

    It is the direction of the mean of unit vectors: 179° and −179° give 180°, and not 0°.

    >>> import numpy as np
    >>> from owlrl.experiments.session import final_angles
    >>> final_angles(np.radians([[50.0, 10.0], [179.0, 10.0], [-179.0, 20.0]]), last=2).round(6)
    array([180.,  15.])
    """
    ends = angles[-last:]
    found: FloatArray = np.degrees(np.arctan2(np.sin(ends).mean(0), np.cos(ends).mean(0)))
    return found


def _regularizer(run: Run) -> Any:
    make, recipe = run.recipe.regularizer, run.recipe
    own = (recipe.control or {}) if run.control else recipe.strength
    return None if make is None else make(own if run.strength is None else run.strength, run.seed)


def _make_learner(run: Run, env: ArrayVectorEnv, seed: int) -> DQN | SAC:
    """The learner of a run, with what its method changes in it."""
    return _make_sac(run, env) if run.control else _make_dqn(run, env)


def _make_dqn(run: Run, env: ArrayVectorEnv) -> DQN:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        trunk, features = run.preset.trunk()
        if run.recipe.dropout:
            trunk = nn.Sequential(trunk, nn.Dropout(run.recipe.dropout))
        more = {"n_step": run.config.n_step, "sampler": run.config.sampler}
        agent = DQN(
            env,
            config=run.config,
            trunk=trunk,
            feature_dim=features,
            replay=_make_replay(run, run.config.buffer_size, run.config.gamma, env, **more),
            seed=run.seed,
            device="cpu",
            compile=run.compile,
        )
        if run.recipe.head is not None:  # not DQN(head=...), which would begin with other weights than so far
            agent.q = MultiHeadQ(trunk, features, agent.num_actions, head=run.recipe.head)
            agent.target = copy.deepcopy(agent.q)
            agent.optimizer = torch.optim.Adam(agent.q.parameters(), lr=run.config.learning_rate, fused=True)
    return agent


def _make_sac(run: Run, env: ArrayVectorEnv) -> SAC:
    space = env.single_action_space
    replay = _make_replay(run, run.sac.buffer_size, run.sac.gamma, env, action_space=space)
    return SAC(env, config=run.sac, replay=replay, seed=run.seed, device="cpu", compile=run.compile)


def _make_replay(run: Run, room: int, gamma: float, env: ArrayVectorEnv, **more: Any) -> Replay:
    common: dict[str, Any] = {
        "observation_space": env.single_observation_space,
        "num_envs": env.num_envs,
        "gamma": gamma,
        "seed": run.seed,
        **more,
    }
    every = room * len(run.specs)  # room for all tasks, as in the paper
    if run.recipe.replay == "shared" and run.control:  # one task as far as the wrapper knows
        return TaskScopedReplay(every, warm_start=every, **common)
    if run.recipe.replay == "shared":
        return SharedReplay(every, **common)
    if run.recipe.replay == "rehearsal":
        return RehearsalReplay(room, **common)
    return TaskScopedReplay(room, warm_start=run.recipe.warm_start, **common)
