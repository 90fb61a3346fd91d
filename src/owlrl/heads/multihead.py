"""`MultiHeadQ`: a user's trunk with one Q-head per task."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from owlrl._arguments import Arguments, kind_of
from owlrl.errors import OwlTypeError, OwlValueError
from owlrl.heads.growth import HEAD_INITS, check_last, extend_optimizer
from owlrl.heads.linear import LinearStack, occurring, pad_columns
from owlrl.heads.modes import HeadList, parameters_of
from owlrl.types import HeadPointer, check_head, check_heads

__all__ = ["DuelingHead", "MultiHeadQ", "dueling_q"]

HeadFactory = Callable[[int, int], nn.Module]


def dueling_q(value: Tensor, advantage: Tensor) -> Tensor:
    """``Q = V + A − mean_a A``; value (..., 1), advantage (..., A) → (..., A).

    >>> import torch
    >>> from owlrl.heads import dueling_q
    >>> dueling_q(torch.tensor([[1.0]]), torch.tensor([[2.0, 4.0]]))
    tensor([[0., 2.]])
    """
    return value + advantage - advantage.mean(-1, keepdim=True)


class DuelingHead(nn.Module):
    """A head with a value and an advantage stream (`dueling_q`).

    >>> import torch
    >>> from owlrl.heads import DuelingHead
    >>> DuelingHead(8, 3)(torch.zeros(5, 8)).shape
    torch.Size([5, 3])
    """

    def __init__(self, feature_dim: int, num_actions: int) -> None:
        super().__init__()
        self.value = nn.Linear(feature_dim, 1)
        self.advantage = nn.Linear(feature_dim, num_actions)

    def forward(self, features: Tensor) -> Tensor:
        """(B, F) → (B, A)."""
        return dueling_q(self.value(features), self.advantage(features))


class MultiHeadQ(nn.Module):
    """A trunk shared by all tasks and one Q-head per task (the paper's factorised Q-function).

    It starts with one head; `add_head` makes more at any time. A plain call computes the
    active head, which `OwlWrapper.task` (or `activate`) sets; ``head=k`` computes another one
    and changes nothing. A deep copy (a target network) follows the same active head.

    Args:
        trunk: maps a batch of observations to features (B, feature_dim).
        feature_dim: the trunk's output size.
        num_actions: how many actions a head values; heads made later may differ.
        dueling: value and advantage streams per head.
        head: a factory ``head(feature_dim, num_actions) -> nn.Module`` for another kind of head.

    The active head is one for all threads; ``head=``, `all_heads` and `per_row` may be called by several.

    >>> import torch
    >>> from torch import nn
    >>> from owlrl import MultiHeadQ
    >>> q = MultiHeadQ(nn.Sequential(nn.Linear(4, 16), nn.ReLU()), 16, 2)
    >>> q.add_head()
    1
    >>> observation = torch.zeros(5, 4)
    >>> q(observation).shape, q.all_heads(observation).shape
    (torch.Size([5, 2]), torch.Size([2, 5, 2]))
    >>> torch.allclose(q(observation, head=1), q.all_heads(observation)[1])
    True
    """

    columns = ("Q-values",)  # what the outputs are, for messages

    def __init__(
        self,
        trunk: nn.Module,
        feature_dim: int,
        num_actions: int,
        *,
        dueling: bool = False,
        head: HeadFactory | None = None,
    ) -> None:
        arguments = Arguments("MultiHeadQ")
        arguments.instance("trunk", trunk, nn.Module, "an nn.Module")
        feature_dim = arguments.integer("feature_dim", feature_dim)
        num_actions = arguments.integer("num_actions", num_actions)
        arguments.function("head", head, "head(feature_dim, num_actions) -> nn.Module", none=True)
        if head is not None and dueling:
            arguments.problem("dueling=True and head= exclude each other; build the streams in your factory")
        arguments.check()
        super().__init__()
        self.trunk = trunk
        self.feature_dim = feature_dim
        self.num_actions = num_actions
        self.dueling = dueling
        self.pointer = HeadPointer()
        self._factory: HeadFactory = head or (DuelingHead if dueling else nn.Linear)
        self._stacks = (LinearStack(), LinearStack())
        self._found: tuple[int, nn.Module, list[list[nn.Linear]] | None] | None = None
        self.heads = HeadList([self._new_head(num_actions)], self.pointer)
        self.register_load_state_dict_pre_hook(_grow_to_state)  # type: ignore[no-untyped-call]

    @property
    def module(self) -> nn.Module:
        """This module: `MultiHeadQ` is its own handle."""
        return self

    @property
    def num_heads(self) -> int:
        """How many heads there are."""
        return len(self.heads)

    def forward(self, *inputs: Tensor, head: int | None = None) -> Tensor:
        """Q-values (B, A) of the active head, or of ``head``; the inputs go to the trunk."""
        if head is not None:
            head = check_head("MultiHeadQ", head, self.num_heads)
        index = self.pointer.index if head is None else head
        features = self._features(*inputs)
        if isinstance(index, str):
            return self._all_from(features).flatten(0, 1)
        if not isinstance(index, int):
            return self._rows_from(features, index)
        own = self.heads._modules[str(index)]  # past ModuleList's own look
        out = cast(Tensor, own(features))
        self.pointer.note(self, out, missing=type(own) not in (nn.Linear, DuelingHead))
        return out

    def all_heads(self, *inputs: Tensor) -> Tensor:
        """Q-values (H, B, A) of every head from one trunk pass and one batched product.

        Where heads differ in their number of actions, missing ones are −∞.
        """
        return self._all_from(self._features(*inputs))

    def per_row(self, *inputs: Tensor, heads: Tensor) -> Tensor:
        """Q-values (B, A), row ``b`` by head ``heads[b]``, from one trunk pass."""
        if not self.pointer.fixed_weights:  # else they were
            check_heads("MultiHeadQ.per_row", heads, self.num_heads, len(inputs[0]))
        return self._rows_from(self._features(*inputs), heads)

    def add_head(
        self,
        *,
        init: Literal["fresh", "zero", "copy"] = "fresh",
        num_actions: int | None = None,
        optimizer: Optimizer | None = None,
    ) -> int:
        """Make a head and return its index; the active head stays active.

        Args:
            init: "fresh" draws new weights, "zero" outputs 0 at first, "copy" starts from the active head's.
            num_actions: if this task has another number of actions than the first.
            optimizer: also trains the new head, in the group that holds the first one.
        """
        arguments = Arguments("MultiHeadQ.add_head")
        arguments.choice("init", init, HEAD_INITS)
        num_actions = arguments.integer("num_actions", num_actions, none=True)
        if init == "copy" and num_actions is not None:
            arguments.problem('init="copy" keeps the number of actions; leave num_actions out')
        arguments.check()
        new = self._started_head(init, num_actions or self.num_actions)
        if optimizer is not None:
            names = {f"heads.{self.num_heads}.{name}": p for name, p in new.named_parameters()}
            extend_optimizer(optimizer, self.heads[0].parameters(), names)
        self.heads.append(new)
        for stack, layers in zip(self._stacks, self._linears() or (), strict=False):
            stack.gather(layers)
        return self.num_heads - 1

    def reset_head(self, head: int, *, init: Literal["fresh", "zero", "copy"] = "fresh") -> None:
        """Initialise ``head`` again, as `add_head` would."""
        old = self.heads[check_head("MultiHeadQ.reset_head", head, self.num_heads)]
        *_, last = old.parameters()
        new = self._started_head(init, len(last))
        with torch.no_grad():
            for own, value in zip(old.parameters(), new.parameters(), strict=True):
                own.copy_(value)

    def _started_head(self, init: str, num_actions: int) -> nn.Module:
        active = self.heads[self.pointer.head]
        if init == "copy":
            new = copy.deepcopy(active)
        else:
            like = next(active.parameters())
            new = self._new_head(num_actions)
            new.to(device=like.device, dtype=like.dtype)
            if init == "zero":
                _answer_zero(new)
        _take_mode(new, active)
        for parameter in new.parameters():
            parameter.grad = None
        return new

    def remove_last_head(self) -> None:
        """Undo `add_head`; an optimizer that holds the head needs `shrink_optimizer`, too."""
        check_last("MultiHeadQ.remove_last_head", self.num_heads, self.pointer)
        del self.heads[-1]

    def activate(self, head: int) -> None:
        """Make ``head`` the active one, here and in every copy.

        Drops the heads' gradients: with ``zero_grad(set_to_none=False)`` a left-over zero
        gradient would let momentum move an idle head.
        """
        self.pointer.index = check_head("MultiHeadQ.activate", head, self.num_heads)
        for parameter in parameters_of(self.heads):
            parameter.grad = None

    def shared_parameters(self) -> dict[str, nn.Parameter]:
        """The trunk's parameters by name."""
        return {f"trunk.{name}": p for name, p in self.trunk.named_parameters()}

    def head_parameters(self, head: int) -> dict[str, nn.Parameter]:
        """One head's parameters by name."""
        own = self.heads[check_head("MultiHeadQ.head_parameters", head, self.num_heads)]
        if type(own) is nn.Linear:  # past named_parameters(), which looks for much more
            return {f"heads.{head}.{name}": p for name, p in own._parameters.items() if p is not None}
        return {f"heads.{head}.{name}": p for name, p in own.named_parameters()}

    def packed(self) -> list[Tensor]:
        """All parameters as few tensors: heads that lie side by side in one tensor as that tensor."""
        streams = self._linears()
        if streams is None:
            return [*parameters_of(self)]
        heads = [
            t for stack, layers in zip(self._stacks, streams, strict=False) for t in stack.packed(layers)
        ]
        return [*parameters_of(self.trunk), *heads]

    def extra_repr(self) -> str:
        """Shown in ``repr``: heads and which one is active."""
        return f"num_heads={self.num_heads}, active={self.pointer.index}"

    def _features(self, *inputs: Tensor) -> Tensor:
        features = cast(Tensor, self.trunk(*inputs))
        if features.shape[-1] != self.feature_dim:
            raise OwlValueError(
                f"MultiHeadQ: the trunk returned features of shape {tuple(features.shape)}; expected "
                f"(batch, {self.feature_dim}); pass feature_dim={features.shape[-1]} or fix the trunk"
            )
        return features

    def _new_head(self, num_actions: int) -> nn.Module:
        head = self._factory(self.feature_dim, num_actions)
        if not isinstance(head, nn.Module):
            raise OwlTypeError(f"MultiHeadQ: head= made {kind_of(head)}; expected an nn.Module")
        return head

    def _linears(self) -> list[list[nn.Linear]] | None:
        """The heads as lists of equal linear layers (one list, or two if dueling); None if they are not."""
        count, last = len(self.heads), self.heads[-1]
        if self._found is None or self._found[0] != count or self._found[1] is not last:
            self._found = count, last, self._equal_linears()
        return self._found[2]

    def _equal_linears(self) -> list[list[nn.Linear]] | None:
        heads = list(self.heads._modules.values())
        kinds = {type(h) for h in heads}
        if kinds == {nn.Linear}:
            streams = [cast("list[nn.Linear]", heads)]
        elif kinds == {DuelingHead}:
            # past nn.Module.__getattr__: with a hundred heads it is what takes the time
            parts = [cast(DuelingHead, h)._modules for h in heads]
            streams = [cast("list[nn.Linear]", [p[name] for p in parts]) for name in ("value", "advantage")]
        else:
            return None
        return streams if len({layer.out_features for layer in streams[-1]}) == 1 else None

    def _all_from(self, features: Tensor) -> Tensor:
        streams = self._linears()
        if streams is None:
            return torch.stack(pad_columns([head(features) for head in self.heads]))
        outputs = [s.all_heads(layers, features) for s, layers in zip(self._stacks, streams, strict=False)]
        return dueling_q(*outputs) if len(outputs) == 2 else outputs[0]

    def _rows_from(self, features: Tensor, heads: Tensor) -> Tensor:
        streams = self._linears()
        if streams is None:
            present, place = occurring(heads)
            outputs = pad_columns([self.heads[k](features) for k in present])
            out = torch.stack(outputs)[place, torch.arange(len(features), device=features.device)]
        else:
            fixed, pairs = self.pointer.fixed_weights, zip(self._stacks, streams, strict=False)
            rows = [stack.per_row(layers, features, heads, fixed) for stack, layers in pairs]
            out = dueling_q(*rows) if len(rows) == 2 else rows[0]
        self.pointer.note(self, out, missing=streams is None)
        return out


def _take_mode(new: nn.Module, like: nn.Module) -> None:
    # no method of MultiHeadQ may name ``training``: `eval_mode` would take it for a module with modes
    new.train(like.training)


def _answer_zero(head: nn.Module) -> None:
    """Set the last layers of a new head to 0."""
    layers = [m for m in head.modules() if isinstance(m, nn.Linear)]
    if not layers:
        raise OwlValueError(
            f'MultiHeadQ.add_head: init="zero" needs a linear layer at the end of {type(head).__name__}; '
            'pass init="fresh" and start at zero in your factory'
        )
    with torch.no_grad():
        for layer in layers if isinstance(head, DuelingHead) else layers[-1:]:
            for parameter in layer.parameters():
                parameter.zero_()


def _grow_to_state(q: nn.Module, state_dict: dict[str, Any], prefix: str, *_: object) -> None:
    """Before loading: make the heads that the module lacks."""
    q = cast(MultiHeadQ, q)
    start = f"{prefix}heads."
    indices = {int(key[len(start) :].split(".")[0]) for key in state_dict if key.startswith(start)}
    for k in range(q.num_heads, max(indices, default=-1) + 1):
        names = (f"{start}{k}.{name}" for name in ("weight", "advantage.weight"))
        last = next((state_dict[name] for name in names if name in state_dict), None)
        q.add_head(num_actions=None if last is None else len(last))
