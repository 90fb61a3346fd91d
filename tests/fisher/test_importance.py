"""`squared_gradients` against the definition, written out in float64."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from owlrl.errors import NonFiniteError, OwlValueError
from owlrl.fisher import importance, squared_gradients
from owlrl.fisher.importance import NotExactError, distinct_rows
from owlrl.heads import MultiHeadQ, promote_output_layers
from owlrl.td import taken


def first(output: Tensor) -> Tensor:
    return output.flatten(1)[:, 0]


def squares(output: Tensor) -> Tensor:
    return output.flatten(1).square().sum(1)


def loss(output: Tensor, target: Tensor) -> Tensor:
    return F.smooth_l1_loss(first(output), target, reduction="none")


def oracle(
    module: nn.Module, objective: Callable[..., Tensor], inputs: tuple[Tensor, ...], *targets: Tensor
) -> dict[str, Tensor]:
    """Mean of squared gradients in float64, a row at a time, on a copy in evaluation mode."""
    module = copy.deepcopy(module).double().eval()
    inputs = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    targets = tuple(t.double() if t.is_floating_point() else t for t in targets)
    names, parameters = zip(*module.named_parameters(), strict=True)
    total = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
    for row in range(len(inputs[0])):
        output = module(*(x[row : row + 1] for x in inputs))
        value = objective(output, *(t[row : row + 1] for t in targets))
        for name, grad in zip(
            names, torch.autograd.grad(value.sum(), parameters, allow_unused=True), strict=True
        ):
            if grad is not None:
                total[name] += grad.square() / len(inputs[0])
    return total


def assert_equal(got: dict[str, Tensor], expected: dict[str, Tensor], rtol: float = 1e-5) -> None:
    assert list(got) == list(expected)
    for name, value in expected.items():
        # relative to the parameter's largest importance: an entry that cancels to 1e-9 of it is zero
        torch.testing.assert_close(got[name].double(), value, rtol=rtol, atol=rtol * float(value.max()))


class Network(nn.Module):
    """A forward pass written in the test."""

    def __init__(self, run: Callable[[Network, Tensor], Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(parts)
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- equal to the definition ------------------------------------------------------------


@st.composite
def mlps(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    sizes = draw(st.lists(st.integers(1, 5), min_size=2, max_size=4))
    torch.manual_seed(draw(st.integers(0, 10)))
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after, bias=draw(st.booleans())), nn.ReLU(inplace=draw(st.booleans()))]
    extra = draw(st.lists(st.integers(1, 3), max_size=2))
    return nn.Sequential(*layers[:-1]), rows(draw(st.integers(1, 7)), *extra, sizes[0])


@settings(max_examples=40)
@given(mlps(), st.sampled_from(["hooks", "vmap", "loop", "auto"]), st.integers(1, 8), st.booleans())
def test_linear_networks(case, method, chunk_size, with_targets):
    module, x = case
    targets = (rows(len(x), seed=1),) if with_targets else ()
    objective = loss if with_targets else squares
    got = squared_gradients(module, objective, (x,), targets=targets, method=method, chunk_size=chunk_size)
    assert_equal(got, oracle(module, objective, (x,), *targets))


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    pair = st.tuples(st.integers(1, 2), st.integers(1, 2))
    groups = draw(st.integers(1, 2))
    inputs, hidden = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    torch.manual_seed(draw(st.integers(0, 10)))
    module = nn.Sequential(
        nn.Conv2d(
            inputs,
            hidden,
            draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
            stride=draw(pair),
            padding=draw(st.tuples(st.integers(0, 2), st.integers(0, 2))),
            dilation=draw(pair),
            groups=groups,
            bias=draw(st.booleans()),
            padding_mode=draw(st.sampled_from(["zeros", "circular", "reflect", "replicate"])),
        ),
        nn.Tanh(),
        nn.Conv2d(hidden, 2, 1),
        nn.Flatten(),
    )
    size = (draw(st.integers(5, 7)), draw(st.integers(5, 7)))
    return module, rows(draw(st.integers(1, 4)), inputs, *size)


@settings(max_examples=40)
@given(convolutions(), st.sampled_from(["hooks", "vmap", "auto"]))
def test_convolutions(case, method):
    module, x = case
    assert_equal(squared_gradients(module, squares, (x,), method=method), oracle(module, squares, (x,)))


def test_a_layer_larger_than_what_is_held_at_once(monkeypatch):
    monkeypatch.setattr("owlrl.fisher.importance.ELEMENTS", 30)
    monkeypatch.setattr("owlrl.fisher.importance.GRADIENT_ELEMENTS", 200)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2))
    x = rows(7, 2, 4, 4)
    for method in ("hooks", "vmap"):
        assert_equal(squared_gradients(module, squares, (x,), method=method), oracle(module, squares, (x,)))


def tied() -> nn.Module:
    network = Network(
        lambda m, x: m.parts["b"](torch.tanh(m.parts["a"](x))), a=nn.Linear(3, 3), b=nn.Linear(3, 3)
    )
    network.parts["b"].weight = network.parts["a"].weight
    return network


AWKWARD: dict[str, Callable[[], nn.Module]] = {
    "layer used twice": lambda: Network(
        lambda m, x: m.parts["b"](m.parts["a"](torch.tanh(m.parts["a"](x)))),
        a=nn.Linear(3, 3),
        b=nn.Linear(3, 2),
    ),
    "tied weights": tied,
    "weight used outside its layer": lambda: Network(
        lambda m, x: torch.tanh(m.parts["a"](x)) @ m.parts["a"].weight, a=nn.Linear(3, 3)
    ),
    "output unused, weight used elsewhere": lambda: Network(
        lambda m, x: (m.parts["a"](x).detach() + x) @ m.parts["a"].weight.t(), a=nn.Linear(3, 3)
    ),
    "rows reshaped": lambda: Network(
        lambda m, x: m.parts["a"](x.reshape(-1, 1)).reshape(len(x), -1), a=nn.Linear(1, 2)
    ),
    "rows not first": lambda: Network(
        lambda m, x: m.parts["a"](x.unsqueeze(0).expand(2, -1, -1)).tanh().sum(0), a=nn.Linear(3, 2)
    ),
    "rows mixed by position": lambda: Network(
        lambda m, x: m.parts["b"](torch.cat([m.parts["a"](x[:1]), torch.tanh(m.parts["a"](x[1:]))])),
        a=nn.Linear(3, 3),
        b=nn.Linear(3, 2),
    ),
    "layer norm": lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2)),
    "batch norm": lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
    "dropout": lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)),
    "same padding": lambda: Network(
        lambda m, x: m.parts["a"](x.reshape(-1, 1, 1, 3)).flatten(1),
        a=nn.Conv2d(1, 2, (1, 3), padding="same"),
    ),
    "recurrent": lambda: Network(
        lambda m, x: m.parts["a"](x.unsqueeze(1))[0], a=nn.GRU(3, 4, batch_first=True)
    ),
    "branch on values": lambda: Network(
        lambda m, x: m.parts["a"](x) if float(x.detach().abs().sum()) > 0 else 2 * m.parts["a"](x),
        a=nn.Linear(3, 2),
    ),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)),
    "part that takes no part": lambda: Network(
        lambda m, x: m.parts["a"](x), a=nn.Linear(3, 2), idle=nn.Linear(3, 2), norm=nn.LayerNorm(3)
    ),
}


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("number", [1, 2, 5])
def test_auto_is_right_for_what_the_closed_form_is_not(name, number):
    torch.manual_seed(0)
    module = AWKWARD[name]()
    x = rows(number, 3)
    if name == "rows mixed by position":
        x = x[:1].expand(number, 3) if number == 1 else x  # alone, a row is always in the first position
    for objective, targets in ((squares, ()), (loss, (rows(number, seed=1),))):
        got = squared_gradients(module, objective, (x,), targets=targets)
        assert_equal(got, oracle(module, objective, (x,), *targets))


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("method", ["hooks", "vmap"])
def test_a_named_path_is_right_or_refuses(name, method):
    torch.manual_seed(0)
    module, x = AWKWARD[name](), rows(5, 3)
    try:
        got = squared_gradients(module, squares, (x,), method=method)
    except (NotExactError, RuntimeError):
        assert name not in {"dropout", "part that takes no part" if method == "vmap" else ""}
    else:
        assert_equal(got, oracle(module, squares, (x,)))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("layer used twice", "takes part 2 times"),
        ("tied weights", "takes part 2 times"),
        ("weight used outside its layer", "takes part 2 times"),
        ("output unused, weight used elsewhere", "not as a linear or conv2d layer"),
        ("rows reshaped", "called with 6 rows where there are 2"),
        ("rows not first", "differs from the loop"),
        ("rows mixed by position", "called with 1 rows where there are 2"),
        ("layer norm", "not as a linear or conv2d layer"),
        ("same padding", "padding='same'"),
    ],
)
def test_closed_form_says_why_it_is_not_exact(name, reason):
    torch.manual_seed(0)
    with pytest.raises(NotExactError, match=reason) as caught:
        squared_gradients(AWKWARD[name](), squares, (rows(5, 3),), method="hooks")
    assert 'use method="auto"' in str(caught.value)


def test_rows_that_influence_each_other_are_taken_one_by_one():
    torch.manual_seed(0)
    module = Network(lambda m, x: m.parts["a"](x - x.mean(0)) + m.parts["a"].bias * 0, a=nn.Linear(3, 2))
    x = rows(4, 3)
    with pytest.raises(NotExactError):
        squared_gradients(module, squares, (x,), method="hooks")
    assert_equal(squared_gradients(module, squares, (x,)), oracle(module, squares, (x,)))


def test_mean_of_squares_is_not_square_of_mean():
    layer = nn.Linear(1, 1)
    x = torch.tensor([[-1.0], [1.0]])
    for method in ("hooks", "vmap", "loop"):
        got = squared_gradients(layer, first, (x,), method=method)
        assert got["weight"].item() == pytest.approx(1.0)  # the mean gradient is 0


def test_auto_takes_the_closed_form_where_it_can(monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("not this path")

    monkeypatch.setitem(importance.PATHS, "vmap", refuse)
    trunk = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 4))
    q = MultiHeadQ(trunk, 4, 3, dueling=True)
    squared_gradients(q, first, (rows(20, 1, 3, 3),))
    promoted = promote_output_layers(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    promoted.add_head()
    monkeypatch.setattr(importance, "PROBE_ROWS", 2)
    calls = []
    monkeypatch.setattr(importance, "one_by_one", lambda p, r: calls.append(len(r)) or ONE_BY_ONE(p, r))
    for head in (0, 1):
        with promoted.pointer.at(head):
            squared_gradients(
                promoted.module, first, (rows(20, 3),), parameters=promoted.head_parameters(head)
            )
    assert calls == [2, 2]  # the probe and nothing else


ONE_BY_ONE = importance.one_by_one


def test_several_inputs_heads_and_integer_targets():
    torch.manual_seed(0)
    q = MultiHeadQ(nn.Sequential(nn.Linear(3, 5), nn.Tanh()), 5, 4)
    q.add_head()
    x, action = rows(9, 3), torch.arange(9) % 4
    with q.pointer.at(1):
        for method in ("hooks", "vmap", "loop"):
            got = squared_gradients(q, taken, (x,), targets=(action,), method=method)
            assert_equal(got, oracle(q, taken, (x,), action))
            assert not got["heads.0.weight"].any()

    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 1)

        def forward(self, observation: Tensor, action: Tensor) -> Tensor:
            return self.layer(torch.cat([observation, action], -1))

    critic, both = Critic(), (rows(6, 3), rows(6, 2, seed=1))
    assert_equal(squared_gradients(critic, first, both), oracle(critic, first, both))


def test_chosen_parameters_keep_their_order_and_tied_names_agree():
    torch.manual_seed(0)
    module, x = tied(), rows(5, 3)
    names = ["parts.b.weight", "parts.a.bias", "parts.a.weight"]
    got = squared_gradients(module, squares, (x,), parameters=iter(names))
    expected = oracle(module, squares, (x,))
    assert list(got) == names
    assert torch.equal(got["parts.b.weight"], got["parts.a.weight"])
    torch.testing.assert_close(
        got["parts.a.weight"].double(), expected["parts.a.weight"], rtol=1e-5, atol=1e-7
    )
    assert squared_gradients(module, squares, (x,), parameters=()) == {}


@pytest.mark.parametrize("method", ["hooks", "vmap", "loop"])
def test_frozen_parameters_are_left_out_unless_named(method):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    module[0].requires_grad_(False)
    x = rows(5, 3)
    assert list(squared_gradients(module, squares, (x,), method=method)) == ["2.weight", "2.bias"]
    everything = squared_gradients(
        module, squares, (x,), parameters=dict(module.named_parameters()), method=method
    )
    assert [p.requires_grad for p in module.parameters()] == [False, False, True, True]
    module.requires_grad_(True)
    assert_equal(everything, oracle(module, squares, (x,)))


@pytest.mark.parametrize("method", ["hooks", "vmap", "loop"])
def test_an_objective_without_gradient_gives_zeros(method):
    got = squared_gradients(nn.Linear(2, 1), lambda out: out.detach()[:, 0], (rows(4, 2),), method=method)
    assert not got["weight"].any() and not got["bias"].any()


def test_half_precision_is_accumulated_in_float32():
    torch.manual_seed(0)
    module = nn.Linear(3, 2).bfloat16()
    x = rows(8, 3).bfloat16()
    got = squared_gradients(module, first, (x * 1e-12,), method="hooks")
    assert got["weight"].dtype == torch.float32
    assert got["weight"][0].min() > 0  # 1e-24: half precision alone would do, its squares' sum would not
    assert squared_gradients(module.double(), first, (x.double(),))["weight"].dtype == torch.float64


# --- repeated rows ------------------------------------------------------------


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
    st.sampled_from([torch.float32, torch.float64, torch.uint8, torch.int64, torch.bool, torch.int16]),
    st.sampled_from([(), (1,), (2, 3)]),
)
def test_distinct_rows_are_counted(kinds, dtype, shape):
    base = torch.arange(4).reshape(4, *(1 for _ in shape)).expand(4, *shape).to(dtype)
    index = torch.tensor(kinds)
    found = distinct_rows((base[index], index.clone()), torch.ones(len(kinds)))
    if 2 * len(set(kinds)) > len(kinds):
        assert found is None
    else:
        first_row, count = found
        assert sorted(index[first_row].tolist()) == sorted(set(kinds))
        assert {int(index[k]): int(c) for k, c in zip(first_row, count, strict=True)} == {
            k: kinds.count(k) for k in set(kinds)
        }


def test_rows_are_the_same_only_if_all_tensors_agree():
    x = torch.zeros(6, 2)
    one, four = torch.ones(6), torch.ones(4)
    assert distinct_rows((x,), one)[1].tolist() == [6]
    assert distinct_rows((x, torch.arange(6)), one) is None
    assert sorted(distinct_rows((x, torch.arange(6) % 2), torch.arange(6.0))[1].tolist()) == [6, 9]
    assert distinct_rows((torch.zeros(4, 0),), four)[1].tolist() == [4]
    assert distinct_rows((torch.full((4, 1), torch.nan),), four) is None  # NaN equals nothing


def test_a_collision_of_hashes_costs_the_saving_and_nothing_else(monkeypatch):
    monkeypatch.setattr(importance, "_hash", lambda x, seed: torch.zeros(len(x), dtype=torch.int64))
    assert distinct_rows((rows(8, 2),), torch.ones(8)) is None


@pytest.mark.parametrize("method", ["hooks", "vmap", "auto"])
def test_repeated_rows_count_as_often_as_they_occur(method):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    index = torch.tensor([0, 1, 1, 0, 0, 0, 2, 0, 1, 0])
    x, target = rows(3, 3)[index], rows(3, seed=1)[index]
    got = squared_gradients(module, loss, (x,), targets=(target,), method=method, chunk_size=2)
    assert_equal(got, oracle(module, loss, (x,), target))


@pytest.mark.parametrize("method", ["hooks", "vmap", "loop", "auto"])
@pytest.mark.parametrize("repeated", [False, True])
def test_weights_are_those_of_a_weighted_mean(method, repeated):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    index = torch.tensor([0, 1, 1, 0, 0, 0, 2, 0, 1, 0]) if repeated else torch.arange(5)
    x, target = rows(5, 3).double()[index], rows(5, seed=1).double()[index]
    weights = torch.linspace(0.0, 3.0, len(index), dtype=torch.float64)
    expected = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
    for row, weight in enumerate(weights):
        one = oracle(module, loss, (x[row : row + 1],), target[row : row + 1])
        for name in expected:
            expected[name] += weight * one[name] / weights.sum()
    got = squared_gradients(module, loss, (x,), targets=(target,), weights=weights, method=method)
    assert_equal(got, expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0] * 4, "weights is list"),
        (torch.ones(3), r"float32 \(3,\); expected a floating tensor \(4,\)"),
        (torch.ones(4, dtype=torch.int64), "int64"),
        (-torch.ones(4), "negative"),
        (torch.zeros(4), "only 0"),
        (torch.full((4,), torch.nan), "not finite"),
    ],
)
def test_bad_weights(weights, message):
    with pytest.raises(OwlValueError, match=message):
        squared_gradients(nn.Linear(2, 1), first, (rows(4, 2),), weights=weights)


# --- the slow path says so ------------------------------------------------------


def test_a_fall_to_the_loop_is_warned_about_with_layer_and_cause():
    torch.manual_seed(0)
    number = importance.SLOW_ROWS
    with pytest.warns(UserWarning) as caught:
        got = squared_gradients(AWKWARD["recurrent"](), squares, (rows(number, 3),))
    (warning,) = caught
    message = str(warning.message)
    assert "Network, at its GRU 'parts.a'" in message and f"{number} rows" in message
    assert '"hooks": ' in message and '"vmap": ' in message and "max_samples" in message
    assert warning.filename == __file__
    torch.manual_seed(0)
    assert_equal(got, oracle(AWKWARD["recurrent"](), squares, (rows(number, 3),)))


def test_no_warning_for_few_rows_nor_where_the_loop_is_asked_for():
    torch.manual_seed(0)
    module = AWKWARD["recurrent"]()
    squared_gradients(module, squares, (rows(importance.SLOW_ROWS - 1, 3),))
    squared_gradients(module, squares, (rows(importance.SLOW_ROWS, 3),), method="loop")
    squared_gradients(module, squares, (rows(1, 3).expand(2 * importance.SLOW_ROWS, 3),))  # one kind of row


# --- leaves no trace ------------------------------------------------------------


class Restless(nn.Module):
    """Changes whatever a forward pass can change, even in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("replaced", torch.zeros(1))
        self.register_buffer("absent", None)

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.replaced = self.replaced + 1
        torch.rand(3)
        return self.layer(self.norm(x))


@pytest.mark.parametrize("method", ["auto", "hooks", "vmap", "loop"])
@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_as_before(method, fails):
    module = Restless().train()
    module.norm.eval()
    module.layer.bias.requires_grad_(False)
    module.layer.weight.grad = torch.ones(2, 3)
    buffers = dict(module.named_buffers())
    values = {name: b.clone() for name, b in buffers.items()}
    weights = {name: p.clone() for name, p in module.named_parameters()}
    seed = torch.get_rng_state()
    wanted = ["layer.weight", "layer.bias"]
    objective = (lambda out: out.sum()) if fails else first
    with torch.no_grad():
        try:
            squared_gradients(module, objective, (rows(5, 3),), parameters=wanted, method=method)
        except (RuntimeError, OwlValueError):
            assert fails or method == "vmap"  # a buffer written in place stops vmap
        else:
            assert not fails
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), seed)
    assert (module.training, module.layer.training, module.norm.training) == (True, True, False)
    assert (module.layer.weight.requires_grad, module.layer.bias.requires_grad) == (True, False)
    assert torch.equal(module.layer.weight.grad, torch.ones(2, 3)) and module.layer.bias.grad is None
    for name, buffer in module.named_buffers():
        assert buffer is buffers[name] and torch.equal(buffer, values[name])
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, weights[name])
    assert not any(m._forward_hooks or m._backward_hooks for m in module.modules())


def test_works_inside_inference_mode():
    layer, x = nn.Linear(2, 1), rows(4, 2)
    with torch.inference_mode():
        got = squared_gradients(layer, first, (x,))
    assert_equal(got, oracle(layer, first, (x,)))


# --- bad input ------------------------------------------------------------


def test_all_problems_are_named_at_once():
    with pytest.raises(OwlValueError) as caught:
        squared_gradients(
            nn.Linear(2, 1),
            first,
            (torch.zeros(0, 2),),
            targets=(torch.zeros(3),),
            parameters=["weigth"],
            method="fast",  # type: ignore[arg-type]
            chunk_size=0,
        )
    message = str(caught.value)
    for part in ("4 problems", "'weigth'", "'fast'", "chunk_size is 0", "[0, 3] rows"):
        assert part in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"module": "net"}, "module is a str"),
        ({"inputs": ()}, "inputs is empty"),
        ({"inputs": (torch.zeros(0, 2),)}, r"\[0\] rows"),
        ({"inputs": ([1.0, 2.0],)}, r"\['list'\]; expected tensors"),
        ({"inputs": torch.zeros(3, 2)}, r"pass \(x,\)"),
        ({"targets": torch.zeros(3)}, r"pass \(x,\)"),
        ({"inputs": (torch.zeros(()),)}, "rows; expected the same number"),
        ({"chunk_size": True}, "chunk_size is True"),
        ({"chunk_size": 2.0}, "chunk_size is 2.0"),
    ],
)
def test_bad_arguments(change, message):
    arguments = {"module": nn.Linear(2, 1), "objective": first, "inputs": (torch.zeros(3, 2),), **change}
    with pytest.raises(OwlValueError, match=message):
        squared_gradients(**arguments)


@pytest.mark.parametrize("method", ["auto", "hooks", "vmap", "loop"])
@pytest.mark.parametrize("objective", [lambda out: out.mean(), lambda out: out, lambda out: 1.0])
def test_objective_must_give_a_number_per_row(method, objective):
    with pytest.raises(OwlValueError, match="expected one number per row"):
        squared_gradients(nn.Linear(2, 1), objective, (rows(4, 2),), method=method)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_result_that_is_not_finite_names_the_parameters(bad):
    x = rows(4, 2)
    x[2, 0] = bad
    with pytest.raises(NonFiniteError, match="'weight' is not finite"):
        squared_gradients(nn.Linear(2, 1), first, (x,))


def test_numpy_numbers_are_numbers():
    layer, x = nn.Linear(2, 1), rows(4, 2)
    got = squared_gradients(layer, first, (x,), chunk_size=np.int64(3))
    assert_equal(got, oracle(layer, first, (x,)))


def test_an_error_of_the_objective_reaches_the_user():
    def broken(_output: Tensor) -> Tensor:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        squared_gradients(nn.Linear(2, 1), broken, (rows(4, 2),))
