"""An update as one compiled function: ``DQN(compile=True)`` and ``SAC(compile=True)``.

Targets, loss, backward pass, clipping, the pull of a regularizer that can be compiled (distillation in its
default form, EWC) and Adam's step are compiled together, in the optimizer's own tensors. Where something else
hangs on the optimizer that needs the gradient, and for networks of many weights, the function ends with the
gradient and the optimizer makes its step itself, hooks included.
"""

from __future__ import annotations

import copy
import inspect
import math
import sysconfig
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.optim import Optimizer

from owlrl.errors import OwlStateError, OwlValueError
from owlrl.heads import DuelingHead, MultiHeadLinear, MultiHeadQ
from owlrl.heads.modes import has_mode, parameters_of
from owlrl.heads.promote import NetworkView, joined
from owlrl.regularizers.base import Fused, Regularizer
from owlrl.types import without_missing

__all__: list[str] = []

BACKEND: Any = "inductor"  # of torch.compile; None runs the same function without it
MOST_WEIGHTS = 100_000  # of a network whose step is compiled: on more, torch's fused Adam is faster
Loss = Callable[..., tuple[Tensor, ...]]


class CompiledStep:
    """A gradient step on a loss with respect to one network, as one compiled function.

    The networks' tensors are its arguments, those of one head among them, so that one compilation serves all
    tasks (with a regularizer, one the first task and one all others). It is made by the first call, for the
    shapes and dtypes met there; others compile again. torch keeps compiled code on disk (in
    ``TORCHINDUCTOR_CACHE_DIR``): a later process compiles faster.

    Args:
        loss: ``loss(*networks, *inputs)``, a pure function: a scalar, and further tensors to hand out.
        max_norm: largest norm of the gradient, or None.

    Attributes:
        seconds: that compiling took, first calls included.
    """

    def __init__(self, loss: Loss, *, max_norm: float | None = None) -> None:
        self.loss = loss
        self.max_norm = max_norm
        self.seconds = 0.0
        self._functions: dict[object, Callable[..., Any]] = {}
        self._active: list[ActiveParameters] = []
        self._few = True  # weights: then Adam's step is compiled, too
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}  # by id: a parameter, and where its gradient goes
        self._rate: tuple[float, Tensor] | None = None

    @property
    def name(self) -> str:
        """Of the loss."""
        return str(getattr(self.loss, "func", self.loss).__name__)

    def __call__(
        self, optimizer: Optimizer, networks: Sequence[nn.Module], *inputs: Any, head: int | None = None
    ) -> tuple[Tensor, ...]:
        """One step of the first network; none, if loss, gradient or a network's output are not finite.

        Args:
            optimizer: what trains the first network.
            networks: what the loss is a function of.
            inputs: what else it is a function of.
            head: which head is meant, None for the active one.

        Returns the loss, or what is not finite in its place, and the further tensors.
        """
        if len(self._active) != len(networks) or any(
            a.network is not n for a, n in zip(self._active, networks, strict=True)
        ):
            self._active = [ActiveParameters(network) for network in networks]
            self._few = sum(parameter.numel() for parameter in self._active[0]()) <= MOST_WEIGHTS
        tensors = [parameters(head) for parameters in self._active]
        plain = _plain_adam(optimizer, tensors[0]) if self._few else None
        if plain is not None:
            return self._whole_step(optimizer, networks, tensors, inputs, *plain)
        gradients = [self._gradient(parameter) for parameter in tensors[0]]
        found, _ = self._run(networks, None, None, tensors, inputs, (), gradients)
        for group in optimizer.param_groups:  # zero_grad() would take as long as the step
            for parameter in group["params"]:
                parameter.grad = None
        for parameter, gradient in zip(tensors[0], gradients, strict=True):
            parameter.grad = gradient
        if math.isfinite(float(found[0])):
            optimizer.step()
        return found

    def _whole_step(
        self,
        optimizer: Optimizer,
        networks: Sequence[nn.Module],
        tensors: list[list[nn.Parameter]],
        inputs: tuple[Any, ...],
        adam: dict[str, Any],
        fused: Fused | None,
    ) -> tuple[Tensor, ...]:
        """With the pull and Adam's step inside; hooks that need no gradient are called as always."""
        for hook in _free_hooks(optimizer._optimizer_step_pre_hooks):
            hook(optimizer, (optimizer,), {})
        if self._rate is None or self._rate[0] != adam["lr"]:
            self._rate = adam["lr"], torch.tensor(adam["lr"], dtype=torch.float64)
        moments = [_state_of(optimizer, parameter) for parameter in tensors[0]]
        columns = [[state[key] for state in moments] for key in ("exp_avg", "exp_avg_sq", "step")]
        settings, pulled = (*adam["betas"], adam["eps"]), () if fused is None else fused.inputs()
        found, told = self._run(networks, settings, fused, tensors, inputs, pulled, [*columns, self._rate[1]])
        if math.isfinite(float(found[0])):
            if fused is not None:
                fused.told(told)
            for hook in _free_hooks(optimizer._optimizer_step_post_hooks):
                hook(optimizer, (optimizer,), {})
        return found

    def _run(
        self, networks: Sequence[nn.Module], adam: Any, fused: Fused | None, *arguments: Any
    ) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        """Loss and further tensors, and what the pull tells; the first call compiles."""
        key = (adam, None if fused is None else fused.key)
        if key in self._functions:
            with torch.no_grad():
                done: tuple[tuple[Tensor, ...], list[Tensor]] = self._functions[key](*arguments)
                return done
        start = time.perf_counter()
        self._functions[key] = self._compiled(networks, adam, fused)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's own, of what it uses inside
                found = self._run(networks, adam, fused, *arguments)
        except Exception as error:  # a module may fail to compile in any way
            del self._functions[key]
            raise OwlStateError(
                f"compile=True: {self.name} of {[type(n).__name__ for n in networks]} cannot be compiled "
                f"({type(error).__name__}: {error}); leave compile out, or change the network"
            ) from error
        self.seconds += time.perf_counter() - start
        return found

    def _gradient(self, parameter: Tensor) -> Tensor:
        known = self._kept.get(id(parameter))
        if known is None or known[0] is not parameter or known[1].dtype != parameter.dtype:
            known = self._kept[id(parameter)] = (parameter, torch.empty_like(parameter))
        return known[1]

    def _compiled(
        self, networks: Sequence[nn.Module], adam: tuple[float, float, float] | None, fused: Fused | None
    ) -> Callable[..., Any]:
        """A function of the networks' tensors, the inputs and what it changes: gradients, or Adam's state."""
        plan, max_norm = _Plan(self.loss, networks), self.max_norm
        names = [[name for name, _ in each.named_parameters()] for each in plan.networks]
        pull = None
        if fused is not None:
            pull = partial(fused.pull, _per_row(_plain_copy(networks[0]), names[0], fused))

        def step(
            tensors: list[list[Tensor]], inputs: tuple[Any, ...], pulled: tuple[Any, ...], changed: list[Any]
        ) -> tuple[tuple[Tensor, ...], list[Tensor]]:
            def loss(first: list[Tensor]) -> tuple[Tensor, tuple[Tensor, tuple[Tensor, ...]]]:
                given = [first, *tensors[1:]]
                named = {
                    f"networks.{k}.{name}": tensor
                    for k, own in enumerate(names)
                    for name, tensor in zip(own, given[k], strict=True)
                }
                (value, *further), answered = functional_call(plan, named, inputs)
                return value, (answered, tuple(further))

            found, (value, (answered, further)) = grad_and_value(loss, has_aux=True)(tensors[0])
            norm = torch.stack([g.norm() for g in found]).norm()
            told: list[Tensor] = []
            if max_norm is not None:  # as torch.nn.utils.clip_grad_norm_ does it
                factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
                found = [g * factor for g in found]
            if pull is not None:
                found, told = pull(tensors[0], found, *pulled)
                norm = norm + torch.stack([g.norm() for g in found]).norm()  # neither may be infinite
            norm = torch.where(answered.isfinite(), norm, answered.to(norm))
            if adam is not None:
                finite = value.isfinite() & norm.isfinite()
                means, squares, steps, rate = changed
                _adam_step(tensors[0], found, means, squares, steps, rate, *adam, finite=finite)
            else:
                for kept, new in zip(changed, found, strict=True):
                    kept.copy_(new)
            return (torch.where(norm.isfinite(), value, norm.to(value)), *further), told

        return _with_torch_compile(step, next(networks[0].parameters()).device)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_functions": {}, "_active": [], "_kept": {}}

    def __repr__(self) -> str:
        done = f"compiled in {self.seconds:.0f} s" if self._functions else "not compiled yet"
        return f"CompiledStep({self.name}, {done})"


def _adam_step(
    parameters: list[Tensor],
    gradients: Sequence[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
    rate: Tensor,
    beta: float,
    beta_of_squares: float,
    eps: float,
    *,
    finite: Tensor,
) -> None:
    """Adam in place, as ``torch.optim.Adam`` without weight decay; nothing changes unless ``finite``."""
    for parameter, gradient, mean, square, step in zip(
        parameters, gradients, means, squares, steps, strict=True
    ):
        count = step.double() + 1.0
        new = torch.lerp(mean, gradient, 1.0 - beta)
        new_square = beta_of_squares * square + (1.0 - beta_of_squares) * gradient.square()
        correction = (1.0 - beta_of_squares**count).sqrt().to(parameter.dtype)
        size = (rate / (1.0 - beta**count)).to(parameter.dtype)
        moved = parameter - size * new / (new_square.sqrt() / correction + eps)
        for old, value in ((parameter, moved), (mean, new), (square, new_square), (step, count.to(step))):
            old.copy_(torch.where(finite, value, old))


def _plain_adam(
    optimizer: Optimizer, parameters: list[nn.Parameter]
) -> tuple[dict[str, Any], Fused | None] | None:
    """The settings of an Adam whose step may be made elsewhere, and the pull that is to be made with it.

    Nothing else that hangs on it needs a gradient.
    """
    if type(optimizer) is not torch.optim.Adam or len(optimizer.param_groups) != 1:
        return None
    (group,) = optimizer.param_groups
    if group["weight_decay"] or group["amsgrad"] or group["maximize"] or isinstance(group["lr"], Tensor):
        return None
    before, after = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    # a learning-rate scheduler counts steps by a patch of its optimizer's
    if len(_free_hooks(after)) < len(after) or "step" in vars(optimizer):
        return None
    bound = [hook for hook in before.values() if not _is_free(hook)]
    if not bound:
        return group, None
    owner = getattr(bound[0], "__self__", None)
    fused = owner.fused(optimizer, parameters) if isinstance(owner, Regularizer) else None
    return None if fused is None or len(bound) > 1 else (group, fused)


def _is_free(hook: Any) -> bool:
    return bool(getattr(getattr(hook, "__self__", None), "needs_no_gradient", False))


def _free_hooks(hooks: Mapping[int, Any]) -> list[Any]:
    """Those that need no gradient."""
    return [hook for hook in hooks.values() if _is_free(hook)]


def _per_row(plain: nn.Module, names: list[str], fused: Fused) -> Callable[..., Tensor]:
    """The network without heads as a function of its parameters and of head weights row by row.

    ``per_row(parameters, heads, *inputs)`` → (B, A); heads are those of the parameters that belong to one, in
    their order, each (B, ...).
    """
    of_head = [names[k] for k in fused.heads]
    network, view = fused.network, _View(plain, fused.network.module)

    def per_row(parameters: list[Tensor], heads: list[Tensor], *inputs: Tensor) -> Tensor:
        named, own = dict(zip(names, parameters, strict=True)), dict(zip(of_head, heads, strict=True))
        shared = {name: x for name, x in named.items() if name not in own}
        output: Tensor
        if isinstance(plain, nn.Sequential) and isinstance(
            network, MultiHeadQ
        ):  # the trunk once for all rows
            trunk, head = plain[0], plain[1]
            features = functional_call(trunk, {n.removeprefix("0."): x for n, x in shared.items()}, inputs)
            own = {n.removeprefix("1."): x for n, x in own.items()}
            output = vmap(lambda w, x: functional_call(head, w, (x[None],))[0])(own, features)
            return output
        shared, own = ({f"network.{n}": x for n, x in part.items()} for part in (shared, own))
        output = vmap(lambda w, *x: functional_call(view, {**shared, **w}, tuple(v[None] for v in x))[0])(
            own, *inputs
        )
        return output

    return per_row


class _View(nn.Module):
    """A network whose forward pass is that of a `NetworkView` of it."""

    def __init__(self, network: nn.Module, like: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.call = like._call if isinstance(like, NetworkView) else None

    def forward(self, *inputs: Tensor) -> Tensor:
        return joined(self.network(*inputs) if self.call is None else self.call(self.network, *inputs))


def _state_of(optimizer: Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    state: dict[str, Tensor] = optimizer.state[parameter]
    if not state:  # as Adam begins
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return state


def _with_torch_compile(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    if BACKEND is None:
        return function
    options: dict[str, Any] = {"fullgraph": True, "dynamic": False, "backend": BACKEND}
    if BACKEND == "inductor" and device.type == "cpu":
        options["options"] = {"cpp_wrapper": True}  # calls its kernels from C++
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        options["isolate_recompiles"] = True  # else agents of one process count as one function
    return torch.compile(function, **options)


class _Plan(nn.Module):
    """Copies of networks with one head each, whose forward pass is the loss; their values are not used.

    Beside what the loss returns: the sum of squares of what the output layers answered.
    """

    def __init__(self, loss: Loss, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.loss = loss
        self.networks = nn.ModuleList(_plain_copy(network) for network in networks)
        self.answers: list[Tensor] = []
        for network, plain in zip(networks, self.networks, strict=True):
            for layer in _output_layers(network, plain):
                layer.register_forward_hook(self._note)

    def _note(self, layer: nn.Module, _inputs: Any, output: Tensor) -> None:
        plain = type(layer) in (nn.Linear, DuelingHead)
        self.answers.append((output if plain else without_missing(output)).detach())

    def forward(self, *inputs: Any) -> tuple[tuple[Tensor, ...], Tensor]:
        self.answers.clear()
        found = self.loss(*self.networks, *inputs)
        squares = sum((answer.square().sum() for answer in self.answers), torch.zeros_like(found[0]))
        self.answers.clear()
        return found, squares


class ActiveParameters:
    """The parameters of a network's shared layers and of one head, in the order of the network without heads.

    The layers are looked up once: finding them takes as long as a small network's forward pass.

    Args:
        network: any module; `MultiHeadQ` and `MultiHeadLinear` have heads, also where they get them later.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self._look()

    def __call__(self, head: int | None = None) -> list[nn.Parameter]:
        """With ``head``, or with the active one."""
        q = self.network
        if isinstance(q, MultiHeadQ):
            if q.trunk is not self._shared:
                self._look()
            own = q.heads._modules[str(q.pointer.head if head is None else head)]
            found = [layer._parameters[name] for layer, name in self._layers]
            if type(own) is nn.Linear:  # past parameters_of(): there is nothing to look for
                return found + [p for p in own._parameters.values() if p is not None]
            return found + parameters_of(own)
        found = []
        for layer, name in self._layers:
            if isinstance(layer, MultiHeadLinear):
                layer = layer.linear(layer.pointer.head if head is None else head)
            found.append(layer._parameters[name])
        return found

    def _look(self) -> None:
        self._shared = self.network.trunk if isinstance(self.network, MultiHeadQ) else self.network
        plain = [m for name, m in self._shared.named_modules() if "extra_heads" not in name.split(".")]
        named = [(m, name) for m in plain for name, p in m._parameters.items() if p is not None]
        # a parameter that is shared by two layers counts once, as in named_parameters()
        self._layers = list({id(m._parameters[name]): (m, name) for m, name in reversed(named)}.values())[
            ::-1
        ]


def _plain_copy(network: nn.Module) -> nn.Module:
    """A copy with one head and without a pointer to the active one."""
    if isinstance(network, MultiHeadQ):
        return nn.Sequential(copy.deepcopy(network.trunk), copy.deepcopy(network.heads[0]))
    plain = copy.deepcopy(network)
    for layer in [m for m in plain.modules() if isinstance(m, MultiHeadLinear)]:
        layer.demote(0)
    return plain


def _output_layers(network: nn.Module, plain: nn.Module) -> list[nn.Module]:
    """The layers of a plain copy that answer."""
    if isinstance(network, MultiHeadQ):
        return [cast(nn.Sequential, plain)[1]]
    named = [(name.split(".")[0], m) for name, m in plain.named_modules()]
    return [m for name, m in named if name in ("output", "outputs") and type(m) is nn.Linear]


def check_compiles(where: str, networks: Sequence[nn.Module], device: torch.device) -> None:
    """Raise if ``compile=True`` cannot work here: no C++ compiler, or a network with modes."""
    modes = sorted({type(m).__name__ for n in networks for m in n.modules() if has_mode(type(m))})  # type: ignore[arg-type]
    if modes:
        raise OwlValueError(
            f"{where}: compile=True and {modes} in the network, which have a training mode; leave compile "
            "out, or take a network without"
        )
    if device.type == "cpu" and BACKEND == "inductor":
        try:
            from torch._inductor.cpp_builder import get_cpp_compiler

            get_cpp_compiler()
        except Exception as error:  # torch's error depends on its version
            raise OwlStateError(
                f"{where}: compile=True needs a C++ compiler, and none was found ({error}); install g++ or "
                "clang, name it in the environment variable CXX, or leave compile out"
            ) from error
        if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
            raise OwlStateError(
                f"{where}: compile=True needs Python.h, and it is not in {sysconfig.get_paths()['include']}; "
                "install the headers of this Python (python3-dev), or leave compile out"
            )
