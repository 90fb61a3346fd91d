"""`DistillationRegularizer`: old heads go on answering as they did."""

from __future__ import annotations

import warnings
from collections.abc import Container, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from owlrl._arguments import Arguments, own_generator
from owlrl.errors import NonFiniteError, OwlStateError, OwlTypeError, OwlValueError
from owlrl.heads.modes import eval_mode
from owlrl.memory.task_memory import TaskMemory, gather_rows
from owlrl.protocols import Consolidation, MultiHead
from owlrl.regularizers.base import (
    Pull,
    Regularizer,
    Strength,
    check_strength,
    evenly,
    gradient_of,
    strength_of,
    tensor_problems,
    tensors_of,
)

__all__ = ["DistillationRegularizer", "distillation_loss", "output_spread"]

CHUNK = 1024  # rows answered at once
MOST_TASKS = 4  # that one batch is drawn from: more would cost, and over updates all have their turn
PULL = 30.0  # norm of the pull over that of the learner's gradient, per spread of drift
MOST_PULL = 5.0  # and at most: more leaves later tasks too little to learn with
AVERAGED = 0.02  # of a new gradient norm in the running mean
NOTED = 8  # every so many comparisons the drift of each task is noted
DRIFTED = 3.0  # spreads: so far from its answers, a head chooses other actions
FULL = 50  # notes of such a drift in a row that say that the trunk is full


def distillation_loss(output: Tensor, stored: Tensor) -> Tensor:
    """``mean_b mean_a (output − stored)²``; output (B, A') and stored (B, A) → a scalar.

    Where ``stored`` is −∞ the row's head has no such output: left out of that row's mean.

    >>> import torch
    >>> from owlrl.regularizers import distillation_loss
    >>> stored = torch.tensor([[0.0, 2.0], [3.0, -torch.inf]])
    >>> distillation_loss(torch.tensor([[1.0, 2.0], [5.0, 0.0]]), stored)
    tensor(2.2500)
    """
    return _row_errors(output, stored).mean()


def _row_errors(output: Tensor, stored: Tensor) -> Tensor:
    """``mean_a (output − stored)²`` of each row, (B,)."""
    width = min(output.shape[1], stored.shape[1])  # either may be padded for a head that no row has
    output, stored = output[:, :width], stored[:, :width]
    absent = torch.isneginf(stored)
    difference = output.masked_fill(absent, 0.0) - stored.masked_fill(absent, 0.0)
    return difference.square().sum(1) / (~absent).sum(1).clamp(min=1)


def output_spread(outputs: Tensor, *, each: bool = False) -> Tensor:
    """The unit that drift is measured in: how far a head's outputs (N, A) are apart, (A,).

    For Q-values what chooses the action: the root mean square of ``Q(s, a) − mean_a Q(s, a)`` in a row, and
    of rows the median, since few in which an action is fatal would hide all others. For one output, and with
    ``each`` (actors and critics), the standard deviation of every output over rows. Spreads below 1 % of the
    widest output's deviation (with ``each`` 10 %) count as that much.

    >>> import torch
    >>> from owlrl.regularizers import output_spread
    >>> q = torch.tensor([[10.0, 12.0], [21.0, 19.0]])
    >>> output_spread(q), output_spread(q, each=True)
    (tensor([1., 1.]), tensor([5.5000, 3.5000]))
    """
    there = ~torch.isneginf(outputs)
    values = torch.where(there, outputs, torch.zeros_like(outputs)).double()
    count = there.sum(0).clamp(min=1)
    deviation = ((values - values.sum(0) / count) * there).square().sum(0).div(count).sqrt()  # (A,)
    tiny = 1e-6 * values.abs().max() + 1e-12
    if each or outputs.shape[1] == 1:
        return torch.maximum(deviation, 0.1 * deviation.max() + tiny).to(outputs.dtype)
    centre = values.sum(1, keepdim=True) / there.sum(1, keepdim=True).clamp(min=1)
    rows = ((values - centre) * there).square().sum(1).div(there.sum(1).clamp(min=1)).sqrt()  # (N,)
    spread = torch.maximum(rows.median(), 0.01 * deviation.max() + tiny)
    return spread.expand(outputs.shape[1]).to(outputs.dtype)


class _Batch(NamedTuple):
    """B rows of several tasks: inputs, stored outputs and their unit (B, A), and each row's head (B,)."""

    tasks: list[str]
    of_row: np.ndarray  # which of the tasks, (B,)
    inputs: tuple[Tensor, ...]
    stored: Tensor
    unit: Tensor
    heads: Tensor


class _Compared(NamedTuple):
    """A network's penalty and the parameters it is meant for; those it does not reach stay as they are."""

    loss: Tensor
    on: list[nn.Parameter]


class DistillationRegularizer(Regularizer):
    """Holds the outputs of earlier tasks' heads to their stored values.

    With ``states="memory"`` the head's outputs on rows of its task are kept, and one batch of them,
    spread evenly over earlier tasks (4 at most, chosen at random), is compared per update. The rows are
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
    heads that got one would jitter by the step size, which is much where Q-values are small. With a
    ``strength`` and memory, trunk and old heads both learn from the penalty.

    The network is called in evaluation mode. Use either `attach`, as `OwlWrapper` does, or `penalty` in a
    loss of one's own, with a ``strength``.

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
        self._steps: dict[str, int] = {}  # of each network's optimizer, since something is kept
        self._gradient: dict[str, Tensor] = {}  # running mean of the learner's gradient norm
        self._drift: dict[str, dict[str, float]] = {}  # per network and task, in spreads
        self._drifting: dict[str, int] = {}  # notes in a row of a drift that is too large
        self._notes: dict[str, int] = {}

    def remember(self, task: str, context: Mapping[str, Consolidation]) -> None:
        """Keep what ``task`` answers now; replaces what was kept of it."""
        held = self._check_context(task, context)
        if self.states == "memory":
            self._keep(task, context, {name: self._answered(task, name, c) for name, c in held.items()})
        else:
            entries = {name: self._weights(name, c) for name, c in held.items()}
            self._keep(task, context, entries)
            if entries:
                self._set_kept({task: self.kept[task]})
        self._drifting.clear()

    @property
    def needs_no_gradient(self) -> bool:
        """While nothing is kept."""
        return not self.kept

    def term(self, name: str) -> Tensor | None:
        """The mean squared difference on a fresh batch; without a strength, in units of the heads' spread."""
        found = self._compare(name)
        return None if found is None else found.loss

    def watch(self) -> dict[str, float]:
        """Beside the pull, each head's drift in units of its spread, as ``drift/<network>/<task>``."""
        drift = {
            f"drift/{name}/{task}": value for name, of in self._drift.items() for task, value in of.items()
        }
        return {**super().watch(), **drift}

    def state_dict(self) -> dict[str, Any]:
        """All that is kept, the steps counted, the running means and the generator."""
        return {
            "states": self.states,
            **super().state_dict(),
            "steps": dict(self._steps),
            "gradient": {name: float(norm) for name, norm in self._gradient.items()},
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
        self._steps = {name: int(count) for name, count in state_dict.get("steps", {}).items()}
        gradient = state_dict.get("gradient", {})
        self._gradient = {
            name: torch.tensor(float(norm), dtype=torch.float64) for name, norm in gradient.items()
        }
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
        unit = output_spread(outputs, each=name.startswith(("actor", "critic")))
        return {"head": head, "outputs": outputs, "unit": unit}

    def _weights(self, name: str, c: Consolidation) -> dict[str, Any]:
        """The task's head with the weights and buffers that compute it; of its inputs only the form."""
        outputs = answers(name, c.network, c.head, evenly(c.inputs, self.memory_size))
        kept = {
            **c.network.shared_parameters(),
            **c.network.head_parameters(c.head),
            **dict(c.network.module.named_buffers()),
        }
        return {
            "head": c.head,
            "unit": output_spread(outputs, each=name.startswith(("actor", "critic"))),
            "weights": {key: tensor.detach().clone() for key, tensor in kept.items()},
            "like": [x[:0].detach().clone() for x in c.inputs],
        }

    def _changed(self) -> None:
        super()._changed()
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

    def _draw(self, name: str) -> _Batch | None:
        """Rows spread evenly over tasks of other heads; None if there is none."""
        network = self.networks[name]
        tasks, heads = self._held.get(name, ([], np.zeros(0, np.int64)))
        others = np.flatnonzero(heads != network.pointer.head)
        if not len(others):
            return None
        most = min(MOST_TASKS, self.batch_size)
        if len(others) > most:
            others = self._rng.choice(others, most, replace=False)
        counts = np.full(len(others), self.batch_size // len(others))
        counts[self._rng.permutation(len(others))[: self.batch_size % len(others)]] += 1
        drawn = {tasks[place]: self._entry_of(name, tasks[place], network) for place in others.tolist()}
        index = {
            task: self._rng.integers(0, len(entry["outputs"]), count)
            for (task, entry), count in zip(drawn.items(), counts.tolist(), strict=True)
        }
        of_row = np.repeat(np.arange(len(others)), counts)
        units = [entry["unit"] for entry in drawn.values()]
        stored = [_taken(entry["outputs"], index[task]) for task, entry in drawn.items()]
        return _Batch(
            list(drawn),
            of_row,
            self._inputs(name, drawn, index),
            torch.cat(_widened(stored, -torch.inf)),
            _taken(torch.stack(_widened(units, 1.0)), of_row),
            torch.from_numpy(heads[others].repeat(counts)),
        )

    def _inputs(
        self, name: str, drawn: dict[str, dict[str, Any]], index: dict[str, np.ndarray]
    ) -> tuple[Tensor, ...]:
        """What the network is called with for these rows of each task, one after the other."""
        if not any("inputs" in entry for entry in drawn.values()):
            return self._rows(name, index)
        parts = [
            tuple(_taken(x, index[task]) for x in entry["inputs"])
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
        batch = self._draw(name)
        if batch is None:
            return None
        network = self.networks[name]
        with eval_mode(network.module):
            inputs = placed(network, batch.inputs)
            output = network.per_row(*inputs, heads=batch.heads.to(inputs[0].device))
        errors = self._errors(name, output, batch.stored, batch.unit, batch.tasks, batch.of_row)
        drawn = dict.fromkeys(batch.heads.tolist())
        on = list(network.shared_parameters().values())
        for head in drawn:
            on += network.head_parameters(head).values()
        return _Compared(errors.mean(), on)

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
        errors = self._errors(
            name, now, before, entry["unit"].expand(len(now), -1), [task], np.zeros(len(now), int)
        )
        return _Compared(errors.mean(), list(network.shared_parameters().values()))

    def _current_inputs(self, name: str, like: list[Tensor]) -> tuple[Tensor, ...]:
        if self.learner is None or self.learner.replay is None:
            raise OwlStateError(
                'DistillationRegularizer: states="current" needs rows of the current task; '
                "bind(learner) a learner that knows its replay"
            )
        replay = self.learner.replay
        rows = replay.sample(min(self.batch_size, len(replay)))
        inputs: tuple[Tensor, ...] = self.learner.inputs(name, rows)
        got, expected = ([(tuple(x.shape[1:]), x.dtype) for x in rows] for rows in (inputs, like))
        if [_kind(x) for x in inputs] != [_kind(x) for x in like]:
            raise OwlTypeError(
                f'DistillationRegularizer: with states="current" the learner gave inputs of {got} for '
                f"network {name!r}; expected {expected}, as when the task was remembered"
            )
        return inputs

    def _errors(
        self, name: str, output: Tensor, stored: Tensor, unit: Tensor, tasks: list[str], of_row: np.ndarray
    ) -> Tensor:
        """Squared differences of each row (B,), in units where there is no strength; drift is noted."""
        stored, unit = stored.to(output), unit.to(output)
        count = self._notes[name] = self._notes.get(name, -1) + 1
        width = min(output.shape[1], stored.shape[1])
        unit = unit[:, :width]
        noted = count % NOTED == 0
        relative = None
        if self.strength is None or noted:
            relative = _row_errors(output[:, :width] / unit, stored[:, :width] / unit)
        if noted and relative is not None:
            self._note(name, relative.detach(), tasks, of_row)
        return relative if self.strength is None and relative is not None else _row_errors(output, stored)

    def _note(self, name: str, errors: Tensor, tasks: list[str], of_row: np.ndarray) -> None:
        """Keep the drift of each task that was drawn, and warn when held heads drift for long."""
        values = errors.double().cpu().numpy()
        squares = np.bincount(of_row, weights=values) / np.maximum(np.bincount(of_row), 1)
        drift = self._drift.setdefault(name, {})
        for task, square in zip(tasks, squares, strict=False):
            drift[task] = float(np.sqrt(square))
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

    # --- the pull ---

    def _pull(self, name: str, mine: Container[int], scale: Tensor | None) -> Pull | None:
        if name not in self._held or not strength_of(self.strength, name):
            return None
        self._steps[name] = self._steps.get(name, 0) + 1
        if self._steps[name] % self.every:
            return None
        with torch.enable_grad():
            found = self._compare(name)
            if found is None:
                return None
            if self.strength is not None:
                return gradient_of(self.every * strength_of(self.strength, name) * found.loss, found.on, mine)
            return self._relative_pull(name, found, mine, scale)

    def _relative_pull(
        self, name: str, found: _Compared, mine: Container[int], scale: Tensor | None
    ) -> Pull | None:
        """The gradient on the shared parameters, with a norm that follows the learner's (see the class)."""
        shared = list(self.networks[name].shared_parameters().values())
        own = [p.grad for p in shared if id(p) in mine and p.grad is not None]
        parameters, grads = gradient_of(found.loss, shared, mine)
        if not own or not grads:
            return None  # the learner does not train the trunk now: no head is in danger
        with torch.no_grad():
            norm = torch.stack(torch._foreach_norm(own)).norm()
            if scale is not None:
                norm = norm / scale.to(norm)
            mean = self._gradient.get(name, norm).to(norm)
            mean = torch.where(norm.isfinite(), mean + AVERAGED * (norm - mean), mean)
            self._gradient[name] = mean
            return parameters, scaled_pull(grads, self.every * mean, found.loss.detach().sqrt())


def scaled_pull(grads: list[Tensor], gradient: Tensor, drift: Tensor) -> list[Tensor]:
    """``grads`` with the joint norm ``gradient · min(PULL · drift, MOST_PULL)``; zeros stay zeros."""
    norm = torch.stack(torch._foreach_norm(grads)).norm()
    factor = torch.where(norm > 0, gradient * (PULL * drift).clamp(max=MOST_PULL) / norm, 0.0)
    return [g * factor for g in grads]


def answers(name: str, network: MultiHead, head: int, inputs: tuple[Tensor, ...]) -> Tensor:
    """What ``head`` answers, (N, A), computed in pieces and kept where the inputs are."""
    home = inputs[0].device
    with torch.no_grad(), eval_mode(network.module):
        pieces = [
            network(*placed(network, tuple(x[start : start + CHUNK] for x in inputs)), head=head).to(home)
            for start in range(0, len(inputs[0]), CHUNK)
        ]
    output = torch.cat(pieces)
    if output.dim() != 2:
        raise OwlValueError(
            f"DistillationRegularizer.remember: network {name!r} gave {tuple(output.shape)}; "
            "expected (N, outputs)"
        )
    if not (output.isfinite() | output.isneginf()).all():
        raise NonFiniteError(
            f"DistillationRegularizer.remember: outputs of head {head} of network {name!r} are not finite"
        )
    return output


def _taken(rows: Tensor, index: np.ndarray) -> Tensor:
    return rows[torch.from_numpy(index).to(rows.device)]


def _widened(rows: list[Tensor], value: float) -> list[Tensor]:
    """All with as many columns as the widest, the others filled with ``value``."""
    width = max(x.shape[-1] for x in rows)
    return [x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]), value=value) for x in rows]


def placed(network: MultiHead, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The inputs where the network's parameters are now, floating ones in their dtype."""
    like = next(iter(network.module.parameters()))
    return tuple(x.to(like.device, like.dtype if x.is_floating_point() else x.dtype) for x in inputs)


def outputs_before_and_now(
    network: MultiHead, head: int, weights: Mapping[str, Tensor], inputs: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor]:
    """What kept weights answer, ``g_τ ∘ f_old``, and today's trunk through the same head, ``g_τ ∘ f_new``.

    The equation regularizes the trunk and has one g_τ on both sides: the head gets no gradient.
    """
    own = tensors_of(network.module)
    kept = {name: w.to(own[name]) for name, w in weights.items()}
    fixed = {name: p.detach() for name, p in network.head_parameters(head).items()}
    with network.pointer.at(head):
        with torch.no_grad():
            before: Tensor = functional_call(network.module, kept, inputs)
        now: Tensor = functional_call(network.module, fixed, inputs)
    return before, now


def _kind(x: Tensor) -> tuple[object, ...]:
    return (x.shape[1:], "floating" if x.is_floating_point() else x.dtype)
