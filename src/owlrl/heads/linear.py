"""Several linear heads as one batched product, and `MultiHeadLinear`, a linear layer that has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from owlrl.heads.modes import HeadList
from owlrl.types import HeadPointer

__all__ = ["MultiHeadLinear", "product_all"]


def product_all(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Every head on every row: x (B, F), weight (H, A, F), bias (H, A) → (H, B, A).

    >>> import torch
    >>> from owlrl.heads.linear import product_all
    >>> product_all(torch.tensor([[1.0, 2.0]]), torch.ones(3, 1, 2), None).flatten()
    tensor([3., 3., 3.])
    """
    heads, outputs, features = weight.shape
    # one (B, F) x (F, H*A) product: faster on a CPU than a batch of H small ones
    out = F.linear(x, weight.reshape(heads * outputs, features), None if bias is None else bias.reshape(-1))
    return out.view(len(x), heads, outputs).transpose(0, 1)


def pad_columns(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Pad (B, A_k) outputs with −∞ to the largest A: a missing action is never the greedy one."""
    width = max(out.shape[-1] for out in outputs)
    return [F.pad(out, (0, width - out.shape[-1]), value=-torch.inf) for out in outputs]


def occurring(heads: Tensor) -> tuple[list[int], Tensor]:
    """The heads that occur in (B,) ``heads``, and each row's place among them (head 0 for no rows)."""
    present, place = torch.unique(heads, return_inverse=True)
    return present.tolist() or [0], place


class LinearStack:
    """The weights of several equal ``nn.Linear`` as (H, A, F) and (H, A) tensors.

    With gradients enabled the stack is built from the parameters, so gradients reach each layer's own.
    Without, the parameters become views of one stacked tensor, which therefore cannot go stale: whatever
    writes to a parameter (an optimizer, ``param.data.copy_``) writes to the stack. A parameter that
    moved (``.to(device)``, a deep copy) is found by its address. A single layer stays where it is.
    """

    def __init__(self) -> None:
        self._stacks: dict[str, Tensor] = {}

    def all_heads(self, layers: Sequence[nn.Linear], x: Tensor) -> Tensor:
        """Every layer on every row: x (B, F) → (H, B, A)."""
        return product_all(x, *self.weights(layers))

    def per_row(
        self,
        layers: Sequence[nn.Linear],
        x: Tensor,
        heads: Tensor,
        fixed: dict[LinearStack, tuple[Tensor, ...]] | None = None,
    ) -> Tensor:
        """Row ``b`` by layer ``heads[b]``: x (B, F), heads (B,) → (B, A).

        With ``fixed``, where rows' weights are kept, the layers get no gradient.
        """
        if torch.is_grad_enabled():
            if fixed is not None:
                if self not in fixed:
                    with torch.no_grad():
                        present, place = occurring(heads)
                        some = self.weights([layers[k] for k in present], home=False)
                        fixed[self] = tuple(w[place] for w in some if w is not None)
                weight, *bias = fixed[self]
                out = torch.bmm(weight, x.unsqueeze(-1)).squeeze(-1)
                return out + bias[0] if bias else out
            # only the heads that occur: an idle one must not even get a zero gradient
            present, heads = occurring(heads)
            layers = [layers[k] for k in present]
        return self.all_heads(layers, x)[heads, torch.arange(len(x), device=x.device)]

    def gather(self, layers: Sequence[nn.Linear]) -> None:
        """Put the weights into one tensor now, where another thread that acts finds them."""
        if len({layer.out_features for layer in layers}) == 1:
            with torch.no_grad():
                self.weights(layers)

    def packed(self, layers: Sequence[nn.Linear]) -> list[Tensor]:
        """The stacked tensors where the layers' parameters lie in them, else the parameters themselves."""
        first, last = layers[0]._parameters, layers[-1]._parameters
        found: list[Tensor] = []
        for name in [name for name in ("weight", "bias") if first[name] is not None]:
            stack, ends = self._stacks.get(name), [cast(Tensor, own[name]) for own in (first, last)]
            if stack is not None and len(stack) == len(layers) and _homed(stack[:: len(stack) - 1], ends):
                found.append(stack)
            else:
                found += [cast(Tensor, layer._parameters[name]) for layer in layers]
        return found

    def weights(self, layers: Sequence[nn.Linear], *, home: bool = True) -> tuple[Tensor, Tensor | None]:
        """Weight (H, A, F) and bias (H, A), or None without one; copies without ``home``."""
        owners = [layer._parameters for layer in layers]
        weight = self._stacked("weight", [own["weight"] for own in owners], home)
        if owners[0]["bias"] is None:
            return weight, None
        return weight, self._stacked("bias", [own["bias"] for own in owners], home)

    def _stacked(self, name: str, found: Sequence[nn.Parameter | None], home: bool) -> Tensor:
        parameters = cast("Sequence[nn.Parameter]", found)
        if torch.is_grad_enabled() or not home:
            return torch.stack(list(parameters))
        if len(parameters) == 1:
            return parameters[0].detach()[None]
        stack = self._stacks.get(name)
        if stack is None or not _homed(stack, parameters):
            with torch.inference_mode(False), torch.no_grad():
                stack = torch.stack([p.detach() for p in parameters])
                for parameter, view in zip(parameters, stack, strict=True):
                    parameter.data = view
            self._stacks[name] = stack
        return stack

    def __deepcopy__(self, memo: dict[int, object]) -> LinearStack:
        return LinearStack()  # a copy's parameters live elsewhere


def _homed(stack: Tensor, parameters: Sequence[Tensor]) -> bool:
    if len(stack) != len(parameters) or stack.dtype != parameters[0].dtype:
        return False
    start, step = stack.data_ptr(), stack.stride(0) * stack.element_size()
    return [p.data_ptr() for p in parameters] == list(range(start, start + step * len(stack), step))


class MultiHeadLinear(nn.Linear):
    """An ``nn.Linear`` with more heads; its own weight stays head 0 under its own name.

    Made in place by `promote_output_layers`; the pointer says which head a call computes.

    >>> from torch import nn
    >>> from owlrl.heads.linear import MultiHeadLinear
    >>> from owlrl.types import HeadPointer
    >>> layer = MultiHeadLinear.promote(nn.Linear(4, 2), HeadPointer())
    >>> layer.add_head(nn.Linear(4, 2))
    1
    >>> sorted(layer.state_dict())
    ['bias', 'extra_heads.0.bias', 'extra_heads.0.weight', 'weight']
    """

    pointer: HeadPointer
    extra_heads: nn.ModuleList
    stack: LinearStack

    @classmethod
    def promote(cls, layer: nn.Linear, pointer: HeadPointer) -> MultiHeadLinear:
        """Turn ``layer`` itself into a multi-head one: every reference to it sees the change."""
        layer.__class__ = cls
        promoted = cast(MultiHeadLinear, layer)
        promoted.pointer = pointer
        promoted.extra_heads = HeadList([], pointer, first=1)
        promoted.stack = LinearStack()
        return promoted

    def demote(self, head: int) -> None:
        """Become a plain ``nn.Linear`` again that holds the values of ``head``."""
        if head:
            kept = self.linear(head)
            with torch.no_grad():
                self.weight.data = kept.weight.detach().clone()
                if self.bias is not None:
                    self.bias.data = kept.bias.detach().clone()
            self.out_features = kept.out_features
        del self.extra_heads, self.pointer, self.stack
        self.__class__ = nn.Linear  # type: ignore[assignment]

    @property
    def num_heads(self) -> int:
        """Heads, the layer's own included."""
        return 1 + len(self.extra_heads)

    def linear(self, head: int) -> nn.Linear:
        """The layer that computes ``head`` (head 0 is this layer itself)."""
        return self if head == 0 else cast(nn.Linear, self.extra_heads[head - 1])

    def add_head(self, layer: nn.Linear) -> int:
        """Append ``layer`` as a further head and return its index."""
        self.extra_heads.append(layer)
        self.stack.gather([self.linear(k) for k in range(self.num_heads)])
        return self.num_heads - 1

    def forward(self, input: Tensor) -> Tensor:
        """(B, F) → (B, A) by the active head; inside the library also by all heads or per row."""
        pointer = self.pointer
        index = pointer.index
        if isinstance(index, int):
            if index == 0:
                out = F.linear(input, self.weight, self.bias)
            else:
                # past nn.Module's look for attributes, and its call: a learner's updates come here many times
                heads = cast("dict[str, nn.Module]", cast(nn.Module, self._modules["extra_heads"])._modules)
                own = heads[str(index - 1)]._parameters
                out = F.linear(input, cast(Tensor, own["weight"]), own["bias"])
        else:
            layers = [self, *cast("list[nn.Linear]", self.extra_heads._modules.values())]
            if isinstance(index, str):
                return self.stack.all_heads(layers, input).flatten(0, 1)
            out = self.stack.per_row(layers, input, index, pointer.fixed_weights)
        pointer.note(self, out)
        return out
