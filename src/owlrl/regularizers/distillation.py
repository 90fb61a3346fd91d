"""`DistillationRegularizer`: old heads keep their outputs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from owlrl._arguments import Arguments, own_generator
from owlrl.errors import OwlStateError, OwlValueError
from owlrl.heads.growth import Owned
from owlrl.heads.modes import eval_mode
from owlrl.memory.task_memory import TaskMemory, gather_rows
from owlrl.protocols import Consolidation, MultiHead
from owlrl.regularizers.answers import (
    AVERAGED,
    CALM,
    CALM_FOR,
    CHUNK,
    RARELY,
    answer_loss,
    answers,
    check_inputs,
    comparable,
    differences,
    fused_pull,
    output_spread,
    outputs_before_and_now,
    placed,
    pull_factor,
    settling_loss,
)
from owlrl.regularizers.base import (
    Fused,
    Pull,
    Regularizer,
    Strength,
    check_strength,
    evenly,
    gradient_of,
    strength_of,
    tensor_problems,
)
from owlrl.regularizers.drawing import DRAWN, Drawn, Rows, draw_rows, taken_rows
from owlrl.regularizers.settling import settle

__all__ = ["DistillationRegularizer"]

NOTED = 8  # every so many comparisons the drift of each task is noted
DRIFTED = 10.0  # spreads: CartPole runs that keep everything reach 8 while they learn
SETTLED = 500  # steps of the shared layers towards all stored outputs at the end of a task, at most,
OF_VISIT = 4  # one for so many of the visit's own steps
SETTLED_ROWS = 128  # rows of such a step
FULL = 50  # notes of such a drift in a row that say that the trunk is full


class _Compared(NamedTuple):
    """A network's penalty and the parameters it is meant for; those it does not reach stay as they are."""

    loss: Tensor
    on: dict[str, nn.Parameter]


class DistillationRegularizer(Regularizer):
    """Keeps the outputs of earlier tasks' heads close to their stored values.

    With ``states="memory"`` the head's outputs on rows of its task are kept, and one batch of them,
    spread evenly over earlier tasks (16 at most, chosen at random), is compared per update. The rows are
    those of the task's memory where one is bound; used alone, up to ``memory_size`` of the inputs that
    `remember` is given are kept.

    With ``states="current"`` (the paper's ablation) nothing is stored but the weights at the end
    of the previous task, and the states are the current task's: ``μ (g_τ∘f_new(s) − g_τ∘f_old(s))²``
    with the previous task's head g_τ. Only the trunk learns from it. It needs the replay of the learner
    that is bound.

    Without a ``strength``, drift is measured in units of each head's own spread (`output_spread`), and the
    pull on the shared parameters has a norm relative to that of the learner's own gradient there (a running
    mean), which grows with the drift. The pull then follows the scale of rewards and the learner's loss. Old
    heads stay bit for bit as they are: Adam's steps are as large for a gradient that is nothing but noise, so
    heads that got one would jitter by the step size, which is much where Q-values are small. While the drift
    stays small, it is compared at every fourth step only. At the end of a task the trunk settles: up to 500
    steps, a quarter of the visit's own at most, towards what every head answered on its rows, undone unless
    they halve the loss. With a ``strength`` and memory, trunk and old heads both learn from the penalty.

    The network is called in evaluation mode. Use either `attach`, as `OwlWrapper` does, or `penalty` in
    your own loss, with a ``strength``.

    Args:
        strength: None, or the weight of the plain penalty ``strength · mean (Q_head(s) − stored)²`` (the
            paper's μ), or one per network name.
        states: "memory" or "current".
        memory_size: rows kept per task where there is no memory.
        batch_size: rows compared at a time, in total.
        every: with `attach`, compare at every such step only, and pull that many times as hard: cheaper, but
            Adam takes rare large gradients for less than frequent small ones.
        seed: of the generator that draws them.

    >>> import torch
    >>> from torch import nn
    >>> from owlrl.heads import MultiHeadQ
    >>> from owlrl.protocols import Consolidation
    >>> from owlrl.regularizers import DistillationRegularizer
    >>> from owlrl.td import taken
    >>> q = MultiHeadQ(nn.Linear(4, 8), 8, 2)
    >>> distillation = DistillationRegularizer(1.0, seed=0)
    >>> observation, action = torch.ones(10, 4), torch.zeros(10, dtype=torch.int64)
    >>> distillation.remember("left", {"q": Consolidation(q, 0, (observation,), (action,), taken, taken)})
    >>> q.activate(q.add_head())
    >>> with torch.no_grad():
    ...     _ = q.heads[0].bias.add_(0.1)
    >>> round(distillation.penalty().item(), 3)
    0.01
    """

    def __init__(
        self,
        strength: Strength | None = None,
        *,
        states: Literal["memory", "current"] = "memory",
        memory_size: int = 5_000,
        batch_size: int = 32,
        every: int = 1,
        seed: int | None = None,
    ) -> None:
        arguments = Arguments("DistillationRegularizer")
        checked = check_strength(arguments, strength, none=True)
        self.states = arguments.choice("states", states, ("memory", "current"))
        self.memory_size = arguments.integer("memory_size", memory_size)
        self.batch_size = arguments.integer("batch_size", batch_size)
        self.every = arguments.integer("every", every)
        self.seed = arguments.integer("seed", seed, least=0, none=True)
        arguments.check()
        super().__init__()
        self.strength = checked
        self._rng = own_generator(self.seed, 0xD157)
        self._held: dict[str, tuple[list[str], np.ndarray]] = {}  # per network: tasks, and their heads
        self._steps: dict[str, int] = {}  # of each network's optimizer in this visit, if something is kept
        self._since: dict[str, int] = {}  # those since the last comparison
        self._calm: dict[str, int] = {}  # comparisons one after the other with a small drift
        self._drawn: dict[str, Drawn] = {}  # per network: rows for the next comparisons
        self._gradient: dict[str, float] = {}  # running mean of the learner's gradient norm
        self._drift: dict[str, dict[str, float]] = {}  # per network and task, in spreads
        self._drifting: dict[str, int] = {}  # notes in a row of a drift that is too large
        self._notes: dict[str, int] = {}
        self._fused: dict[str, tuple[object, Fused | None]] = {}  # per network, and what it was made for

    def remember(self, task: str, context: Mapping[str, Consolidation]) -> None:
        """Keep the outputs of ``task``, in place of earlier ones; then let the shared layers settle."""
        held = self._check_context(task, context)
        if self.states == "memory":
            before = self.kept
            self._keep(task, context, {name: self._answered(task, name, c) for name, c in held.items()})
            try:
                self._settle()
            except BaseException:
                self._set_kept(before)
                raise
        else:
            entries = {name: self._weights(name, c) for name, c in held.items()}
            self._keep(task, context, entries)
            if entries:
                self._set_kept({task: self.kept[task]})
        self._drifting.clear()
        self._steps.clear()

    @property
    def needs_no_gradient(self) -> bool:
        """While nothing is kept."""
        return not self.kept

    def term(self, name: str) -> Tensor | None:
        """The mean squared difference on a fresh batch; without a strength, in units of the heads' spread."""
        found = self._compare(name)
        return None if found is None else found.loss

    def fused(self, optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> Fused | None:
        """The relative pull of the default form; others train heads, or need more than the parameters."""
        name = self._only_network(optimizer)
        if name is None or self.strength is not None or self.states != "memory":
            return None
        if name in self._held and not self._is_due(name):
            return Fused.without_pull(self.networks[name], partial(self._pass_by, name))
        key = (self.networks[name].pointer.head, *map(id, parameters))
        if name not in self._fused or self._fused[name][0] != key:
            self._fused[name] = key, self._fused_for(name, parameters)
        return self._fused[name][1]

    def watch(self) -> dict[str, float]:
        """The pull, and each head's drift in units of its spread as ``drift/<network>/<task>``."""
        drift = {
            f"drift/{name}/{task}": value for name, of in self._drift.items() for task, value in of.items()
        }
        return {**super().watch(), **drift}

    def state_dict(self) -> dict[str, Any]:
        """All that is kept, the steps counted, the running means, the rows drawn and the generator."""
        return {
            "states": self.states,
            **super().state_dict(),
            "drawn": {name: dict(zip(DRAWN, drawn, strict=False)) for name, drawn in self._drawn.items()},
            "steps": dict(self._steps),
            "since": dict(self._since),
            "calm": dict(self._calm),
            "gradient": dict(self._gradient),
            "generator": dict(self._rng.bit_generator.state),
        }

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Take over what was kept; if networks are bound, it must fit."""
        arguments = Arguments("DistillationRegularizer.load_state_dict")
        kept, arguments.problems = self._parse(state_dict)
        rng = np.random.default_rng(0)
        if not arguments.problems:
            try:
                rng.bit_generator.state = state_dict["generator"]
            except (KeyError, TypeError, ValueError) as error:
                arguments.problem(f"generator cannot be read: {error}")
        arguments.check()
        self._set_kept(kept)
        self._rng = rng
        self._drawn = {}
        for name, each in state_dict.get("drawn", {}).items():
            head, seed, parts, used, then = (int(each[key]) for key in DRAWN)
            self._drawn[name] = Drawn(head, seed, parts, used, then)
        self._steps, self._since, self._calm = (
            {name: int(count) for name, count in state_dict.get(key, {}).items()}
            for key in ("steps", "since", "calm")
        )
        self._gradient = {name: float(norm) for name, norm in state_dict.get("gradient", {}).items()}
        self._drift, self._drifting, self._notes = {}, {}, {}

    def __repr__(self) -> str:
        return f"DistillationRegularizer({self.strength!r}, states={self.states!r}, tasks={self.tasks})"

    # --- what is kept ---

    def _answered(self, task: str, name: str, c: Consolidation) -> dict[str, Any]:
        """What the head answers on rows of its task, and the inputs where no memory has them."""
        if self.memories is not None and task in self.memories and len(self.memories[task]):
            return self._answered_by(task, name, c.network, c.head)
        inputs = tuple(x.detach() for x in evenly(c.inputs, self.memory_size))
        form = [(tuple(x.shape[1:]), x.dtype) for x in inputs]
        for other, entries in self.kept.items():
            kept = entries.get(name, {}).get("inputs")
            if other != task and kept and [(tuple(x.shape[1:]), x.dtype) for x in kept] != form:
                raise OwlValueError(
                    f"DistillationRegularizer.remember: inputs of network {name!r} are {form}, unlike "
                    "those of earlier tasks; tasks of one memory must have inputs of one shape and dtype"
                )
        return {**self._entry(name, c.head, answers(name, c.network, c.head, inputs)), "inputs": list(inputs)}

    def _answered_by(self, task: str, name: str, network: MultiHead, head: int) -> dict[str, Any]:
        """The same for the rows of the task's memory, which stay where they are."""
        assert self.memories is not None and self.learner is not None
        memory = self.memories[task]
        size = len(memory)
        pieces = [
            answers(name, network, head, self._rows(name, {task: np.arange(k, min(k + CHUNK, size))}))
            for k in range(0, size, CHUNK)
        ]
        return {**self._entry(name, head, torch.cat(pieces)), "version": memory.version}

    def _entry(self, name: str, head: int, outputs: Tensor) -> dict[str, Any]:
        return {"head": head, "outputs": outputs, "unit": _unit(name, outputs)}

    def _weights(self, name: str, c: Consolidation) -> dict[str, Any]:
        """The task's head with the weights and buffers that compute it; of its inputs only the form."""
        outputs = answers(name, c.network, c.head, evenly(c.inputs, self.memory_size))
        own = {**c.network.shared_parameters(), **c.network.head_parameters(c.head)}
        kept = {**own, **dict(c.network.module.named_buffers())}
        weights = {key: tensor.detach().clone() for key, tensor in kept.items()}
        like = [x[:0].detach().clone() for x in c.inputs]
        return {"head": c.head, "unit": _unit(name, outputs), "weights": weights, "like": like}

    def _set_kept(self, kept: dict[str, dict[str, Any]]) -> None:
        super()._set_kept(kept)
        self._drawn.clear()

    def _changed(self) -> None:
        super()._changed()
        self._drawn = {name: drawn._replace(rows=[], stacked=[]) for name, drawn in self._drawn.items()}
        self._fused = {}
        found: dict[str, dict[str, int]] = {}
        for task, entries in self.kept.items():
            for name, entry in entries.items():
                found.setdefault(name, {})[task] = int(entry["head"])
        self._held = {
            name: (list(heads), np.fromiter(heads.values(), np.int64)) for name, heads in found.items()
        }

    def _parse(self, state_dict: Any) -> tuple[dict[str, dict[str, Any]], list[str]]:
        if isinstance(state_dict, Mapping) and state_dict.get("states", self.states) != self.states:
            got = state_dict["states"]
            return {}, [f"state_dict is of states={got!r}; this regularizer has states={self.states!r}"]
        return super()._parse(state_dict)

    def _entry_problems(self, where: str, entry: Any, network: MultiHead | None) -> list[str]:
        try:
            head, found = int(entry["head"]), []
            if self.states == "memory":
                lengths = {len(x) for x in entry.get("inputs", ())} | {len(entry["outputs"])}
                if (
                    entry["outputs"].dim() != 2
                    or len(lengths) > 1
                    or not ({"inputs", "version"} & set(entry))
                ):
                    found.append(f"{where} cannot be read: inputs and outputs do not fit each other")
            elif network is not None:
                found += tensor_problems(where, entry["weights"], network)
            entry["unit"].shape  # noqa: B018
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
            return [f"{where} cannot be read: {type(error).__name__}: {error}"]
        if network is not None and not 0 <= head < network.num_heads:
            found.append(f"{where} is of head {head}, and the network has {network.num_heads}")
        return found

    # --- what is compared ---

    def _rows(self, name: str, index: dict[str, np.ndarray]) -> tuple[Tensor, ...]:
        """What network ``name`` is called with for rows of the tasks' memories."""
        assert self.memories is not None and self.learner is not None
        memories = [self.memories[task] for task in index]
        if all(isinstance(memory, TaskMemory) for memory in memories):  # in one go
            inputs: tuple[Tensor, ...] = self.learner.inputs(
                name, gather_rows(memories, list(index.values()))
            )
            return inputs
        pairs = zip(memories, index.values(), strict=True)
        parts = [self.learner.inputs(name, memory.gather(numbers)) for memory, numbers in pairs]
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))

    def _draw(self, name: str) -> tuple[Drawn, Rows] | None:
        """Rows of tasks of other heads, to be compared now; None if there is none."""
        head = self.networks[name].pointer.head
        drawn = self._drawn.get(name)
        if drawn is None or drawn.head != head or drawn.used == drawn.parts:
            parts = 1 if drawn is None else drawn.then
            drawn = Drawn(head, int(self._rng.integers(2**62)), parts, 0, parts)
        if not drawn.rows:
            drawn = self._drawn_rows(name, drawn, self.batch_size)
            if not drawn.rows:
                return None
        rows = drawn.rows[drawn.used]
        self._drawn[name] = drawn._replace(used=drawn.used + 1)
        return drawn, rows

    def _drawn_rows(self, name: str, drawn: Drawn, size: int) -> Drawn:
        return draw_rows(
            drawn,
            size,
            self.networks[name],
            *self._held.get(name, ([], np.zeros(0, np.int64))),
            entry_of=partial(self._entry_of, name, network=self.networks[name]),
            inputs_of=partial(self._inputs, name),
            trained=self.strength is not None,
        )

    def _inputs(
        self, name: str, drawn: dict[str, dict[str, Any]], index: dict[str, np.ndarray]
    ) -> tuple[Tensor, ...]:
        """What the network is called with for these rows of each task, one after the other."""
        if not any("inputs" in entry for entry in drawn.values()):
            return self._rows(name, index)
        parts = [
            tuple(taken_rows(x, index[task]) for x in entry["inputs"])
            if "inputs" in entry
            else self._rows(name, {task: index[task]})
            for task, entry in drawn.items()
        ]
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))

    def _entry_of(self, name: str, task: str, network: MultiHead) -> dict[str, Any]:
        """What is kept of a task; answered again by its head where the memory's rows have changed since."""
        entry: dict[str, Any] = self.kept[task][name]
        if "version" in entry:
            if self.memories is None or task not in self.memories:
                raise OwlStateError(
                    f"DistillationRegularizer: outputs for rows of task {task!r} are kept, but its memory is "
                    "not there; call bind(learner, memories), or forget(task)"
                )
            if entry["version"] != self.memories[task].version:
                entry = self.kept[task][name] = self._answered_by(task, name, network, entry["head"])
        return entry

    def _compare(self, name: str) -> _Compared | None:
        """One network's penalty, without its strength; None if no other head is kept."""
        if self.states == "current":
            return self._compare_current(name)
        found = self._draw(name)
        if found is None:
            return None
        drawn, rows = found
        assert drawn.unit is not None and drawn.of_row is not None
        output = self._output(name, drawn, rows)
        count = self._notes[name] = self._notes.get(name, -1) + 1
        if count % NOTED == 0:
            self._note(name, self._squares(output, rows, drawn.unit), drawn.tasks, drawn.of_row)
        return _Compared(answer_loss(output, rows.target, rows.factor), drawn.on)

    def _output(self, name: str, drawn: Drawn, rows: Rows) -> Tensor:
        network = self.networks[name]
        assert drawn.heads is not None
        with eval_mode(network.module), network.pointer.fixed(drawn.fixed):
            return network.per_row(*rows.inputs, heads=drawn.heads)

    def _compare_current(self, name: str) -> _Compared | None:
        held = self._held.get(name)
        network = self.networks[name]
        if held is None or held[1][0] == network.pointer.head:
            return None
        task = held[0][0]
        entry = self.kept[task][name]
        inputs = placed(network, self._current_inputs(name, entry["like"]))
        with eval_mode(network.module):
            before, now = outputs_before_and_now(network, entry["head"], entry["weights"], inputs)
        unit = entry["unit"].to(now).expand(len(now), -1)
        rows = Rows(inputs, *comparable(before, None if self.strength is not None else unit))
        self._note(name, self._squares(now, rows, unit), [task], np.zeros(len(now), int))
        return _Compared(answer_loss(now, rows.target, rows.factor), dict(network.shared_parameters()))

    def _current_inputs(self, name: str, like: list[Tensor]) -> tuple[Tensor, ...]:
        if self.learner is None or self.learner.replay is None:
            raise OwlStateError(
                'DistillationRegularizer: states="current" needs rows of the current task; '
                "bind(learner) a learner that knows its replay"
            )
        replay = self.learner.replay
        rows = replay.sample(min(self.batch_size, len(replay)))
        inputs: tuple[Tensor, ...] = self.learner.inputs(name, rows)
        check_inputs(name, inputs, like)
        return inputs

    @torch.no_grad()
    def _squares(self, output: Tensor, rows: Rows, unit: Tensor) -> Tensor:
        """Squared drift of each row (B,), in spreads."""
        errors = differences(output, rows.target, rows.factor)
        if self.strength is not None:
            errors = errors / unit[:, : errors.shape[1]]
        return errors.square().sum(1)

    def _note(self, name: str, drifts: Tensor, tasks: list[str], of_row: np.ndarray) -> None:
        """Keep the drift of each task that was drawn, and warn when held heads drift for long."""
        values = drifts.double().cpu().numpy()
        squares = np.bincount(of_row, weights=values) / np.maximum(np.bincount(of_row), 1)
        drift = self._drift.setdefault(name, {})
        for k in np.unique(of_row).tolist():
            drift[tasks[k]] = float(np.sqrt(squares[k]))
        large = float(np.sqrt(values.mean())) > DRIFTED
        self._drifting[name] = self._drifting.get(name, 0) + 1 if large else 0
        if self._drifting[name] == FULL:
            worst = max(drift, key=drift.__getitem__)
            warnings.warn(
                f"DistillationRegularizer: heads of network {name!r} drift although they are held (that of "
                f"task {worst!r} by {drift[worst]:.1f} times its spread): the shared layers may be too small "
                "for all tasks, the step size too large, or the strength too small",
                UserWarning,
                stacklevel=2,
            )

    # --- settling ---

    def _settle(self) -> None:
        """Let the shared parameters of all networks return to all that is stored (see `settling`)."""
        names = [name for name, (tasks, _) in self._held.items() if len(tasks) > 1]
        steps = min(SETTLED, max((self._steps.get(name, 0) for name in names), default=0) // OF_VISIT)
        found = [p for name in names for p in self.networks[name].shared_parameters().values()]
        parameters = list({id(p): p for p in found if p.requires_grad}.values())
        if self.strength is not None or not steps or not parameters:
            return

        def loss(batch: tuple[tuple[Drawn, Rows], ...]) -> Tensor:  # of each network
            pairs = ((self._output(name, *each), each[1]) for name, each in zip(names, batch, strict=True))
            return torch.stack([settling_loss(out, rows.target, rows.factor) for out, rows in pairs]).sum()

        with torch.enable_grad():
            settle(parameters, loss, zip(*map(self._all_rows, names), strict=True), steps)

    def _all_rows(self, name: str) -> Iterator[tuple[Drawn, Rows]]:
        """Rows of all tasks, batch after batch, without end."""
        parts = 1
        while True:
            seed = int(self._rng.integers(2**62))
            drawn = self._drawn_rows(name, Drawn(-1, seed, parts, 0, parts), SETTLED_ROWS)
            yield from ((drawn, rows) for rows in drawn.rows)
            parts = drawn.then

    # --- the pull ---

    def _is_due(self, name: str) -> bool:
        """Whether the step that comes now is compared."""
        gap: int = self.every * (RARELY if self._calm.get(name, 0) >= CALM_FOR else 1)
        return self._since.get(name, 0) + 1 >= gap

    def _pass_by(self, name: str) -> tuple[()]:
        """Count a step."""
        self._steps[name] = self._steps.get(name, 0) + 1
        self._since[name] = self._since.get(name, 0) + 1
        return ()

    def _compared(self, name: str, drift: float = math.inf) -> int:
        """Note with what drift this step was compared; the steps since the last time."""
        self._calm[name] = self._calm.get(name, 0) + 1 if drift < CALM else 0
        return self._since.pop(name)

    def _pull(self, name: str, mine: Owned, scale: Tensor | None) -> Pull | None:
        if name not in self._held or not strength_of(self.strength, name):
            return None
        due = self._is_due(name)
        self._pass_by(name)
        if not due:
            return None
        with torch.enable_grad():
            found = self._compare(name)
            if found is None:
                return None
            if self.strength is not None:
                strength = self._compared(name) * strength_of(self.strength, name)
                return gradient_of(strength * found.loss, found.on.values(), mine)
            return self._relative_pull(name, found, mine, scale)

    def _relative_pull(self, name: str, found: _Compared, mine: Owned, scale: Tensor | None) -> Pull | None:
        """The gradient on the shared parameters, with a norm that follows the learner's (see the class)."""
        own = [p.grad for p in found.on.values() if p.grad is not None and id(p) in mine]
        if not own:
            return None  # the learner does not train the trunk now: no head is in danger
        parameters, grads = gradient_of(found.loss, found.on.values(), mine)
        if not grads:
            return None
        with torch.no_grad():
            # all numbers in one transfer
            loss, *norms = torch.stack([found.loss, *torch._foreach_norm([*own, *grads])]).tolist()
            norm = math.hypot(*norms[: len(own)]) / (1.0 if scale is None else float(scale))
            mean = self._gradient.setdefault(name, norm if math.isfinite(norm) else 0.0)
            if math.isfinite(norm):
                mean = self._gradient[name] = mean + AVERAGED * (norm - mean)
            times = self._compared(name, math.sqrt(loss))
            factor = pull_factor(math.hypot(*norms[len(own) :]), times * mean, math.sqrt(loss))
            return parameters, list(torch._foreach_mul(grads, factor))

    def _fused_for(self, name: str, parameters: Sequence[nn.Parameter]) -> Fused | None:
        network = self.networks[name]
        active, shared = network.pointer.head, {id(p) for p in network.shared_parameters().values()}
        own = {id(p): k for k, p in enumerate(network.head_parameters(active).values())}
        where = tuple(k for k, p in enumerate(parameters) if id(p) in shared)
        order = {k: own[id(p)] for k, p in enumerate(parameters) if id(p) in own}
        held = self._held.get(name, ([], np.zeros(0, np.int64)))[1]
        if len(where) < len(shared) or len(order) < len(own) or not (held != active).any():
            return None
        forms = [[p.shape for p in network.head_parameters(k).values()] for k in (active, *held.tolist())]
        if any(form != forms[0] for form in forms):
            return None
        return Fused(
            ("distillation", where),
            partial(fused_pull, where),
            partial(self._fused_inputs, name, list(order.values())),
            partial(self._fused_told, name),
            network,
            tuple(order),
        )

    def _fused_inputs(self, name: str, order: list[int]) -> tuple[Any, ...]:
        """Rows, what the heads answered, those heads' weights row by row, and the mean of gradient norms."""
        self._pass_by(name)
        found = self._draw(name)
        assert found is not None  # some other head is held
        drawn, rows = found
        if not drawn.stacked:
            assert drawn.heads is not None
            network = self.networks[name]
            heads = [list(network.head_parameters(k).values()) for k in drawn.heads.tolist()]
            stacked = [torch.stack([own[k].detach() for own in heads]) for k in order]
            self._drawn[name] = self._drawn[name]._replace(stacked=stacked)
            drawn = self._drawn[name]
        numbers = (self._gradient.get(name, math.nan), float(self._since[name]))
        return rows, drawn.stacked, *(torch.tensor(x, dtype=torch.float64) for x in numbers)

    def _fused_told(self, name: str, told: Sequence[Tensor]) -> None:
        numbers, drifts = told
        mean, own, added = numbers.tolist()
        self._compared(name, math.sqrt(float(drifts.mean())))
        self._gradient[name] = mean
        count, drawn = self._notes.get(name, -1) + 1, self._drawn[name]
        self._notes[name] = count
        if count % NOTED == 0:
            assert drawn.of_row is not None
            self._note(name, drifts, drawn.tasks, drawn.of_row)
        if self._is_measured(name):
            self._relative[name] = torch.tensor(added / own if own else math.inf)


def _unit(name: str, outputs: Tensor) -> Tensor:
    return output_spread(outputs, each=name.startswith(("actor", "critic")))
