"""Promotion of somebody else's output layers: found, in place, reversible, or refused."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm

from owlrl.errors import OwlError, OwlStateError, OwlValueError
from owlrl.heads import MultiHeadLinear, PromotedNetwork, find_output_layers, promote_output_layers
from owlrl.protocols import MultiHead


class Dueling(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True))
        self.value = nn.Linear(6, 1)
        self.advantage = nn.Linear(6, 3)

    def forward(self, x):
        x = self.features(x)
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(1, keepdim=True)


class Aliased(nn.Module):
    """Calls its output layer through another name, as some libraries do."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3, bias=False))
        self.layers = [self.net[0], self.net[1], self.net[2]]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Residual(nn.Module):
    """Adds something of its own to the output, which cannot be done for H*B rows at once."""

    def __init__(self):
        super().__init__()
        self.body, self.out = nn.Linear(4, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.out(self.body(x)) + x[:, :3]


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.mean, self.log_std = nn.Linear(4, 5), nn.Linear(5, 2), nn.Linear(5, 2)

    def forward(self, x):
        x = torch.relu(self.body(x))
        return self.mean(x), self.log_std(x).clamp(-5, 2)


class C51(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.out = nn.Linear(4, 5), nn.Linear(5, 3 * 7)
        self.register_buffer("atoms", torch.linspace(-1, 1, 7))

    def forward(self, x):
        logits = self.out(torch.relu(self.body(x))).view(-1, 3, 7)
        return (logits.softmax(-1) * self.atoms).sum(-1)


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 5)
        self.mu, self.sigma = nn.Parameter(torch.randn(3, 5)), nn.Parameter(torch.randn(3, 5))

    def forward(self, x):
        return nn.functional.linear(self.body(x), self.mu + self.sigma * 0.1)


def mlp():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def cnn():
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3))


FOUND = {
    "mlp": (mlp, ["2"], None),
    "cnn": (cnn, ["3"], torch.zeros(1, 1, 4, 4)),
    "dueling": (Dueling, ["value", "advantage"], None),
    "aliased": (Aliased, ["net.2"], None),
    "residual": (Residual, ["out"], None),
    "mean and log std": (TwoOutputs, ["mean", "log_std"], None),
    "c51": (C51, ["out"], None),
}


@pytest.mark.parametrize("name", sorted(FOUND))
def test_output_layers_are_found(name):
    make, layers, example = FOUND[name]
    network = make()
    state = torch.get_rng_state()
    assert find_output_layers(network, example) == layers
    assert torch.equal(state, torch.get_rng_state())
    assert not any(m._forward_hooks for m in network.modules())
    assert all(p.grad is None for p in network.parameters())


REFUSED = {
    "noisy": Noisy,
    "normalised": lambda: nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)),
    "parametrised": lambda: nn.Sequential(nn.Linear(4, 5), parametrizations.weight_norm(nn.Linear(5, 3))),
    "spectral norm": lambda: nn.Sequential(nn.Linear(4, 5), spectral_norm(nn.Linear(5, 3))),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_layers_that_cannot_have_heads_are_refused_with_the_candidates(name):
    network = REFUSED[name]()
    before = {m: type(m) for m in network.modules()}
    with pytest.raises(OwlValueError, match=r"nn.Linear layers are \['"):
        promote_output_layers(network)
    assert before == {m: type(m) for m in network.modules()}


def test_no_linear_and_unknown_shapes_are_refused():
    with pytest.raises(OwlValueError, match=r"no nn\.Linear produces the output"):
        find_output_layers(
            nn.ReLU(), torch.zeros(1, 2, requires_grad=False) + nn.Parameter(torch.ones(1)).detach()
        )
    with pytest.raises(OwlValueError, match="TaskScopedReplay to a learner, by example="):
        promote_output_layers(cnn())
    with pytest.raises(OwlValueError, match="there is no layer 'out'"):
        promote_output_layers(mlp(), layers=["out"])
    with pytest.raises(OwlValueError, match="layers is empty"):
        promote_output_layers(mlp(), layers=[])


@pytest.mark.parametrize("name", ["mlp", "cnn", "dueling", "aliased", "residual", "c51"])
@pytest.mark.parametrize("grad", [False, True])
def test_all_heads_and_per_row_equal_the_loop(name, grad):
    make, _, example = FOUND[name]
    network = make().double()
    x = torch.randn(5, *((4,) if example is None else example.shape[1:]), dtype=torch.float64)
    plain = network(x).detach().clone()
    heads = promote_output_layers(network, example=None if example is None else example.double())
    assert isinstance(heads, MultiHead)
    torch.testing.assert_close(network(x), plain, rtol=0, atol=0)
    for _ in range(3):
        heads.add_head()
    rows = torch.tensor([3, 0, 2, 2, 1])
    with torch.set_grad_enabled(grad):
        expected = torch.stack([heads(x, head=k) for k in range(4)])
        torch.testing.assert_close(heads.all_heads(x), expected)
        torch.testing.assert_close(heads.per_row(x, heads=rows), expected[rows, torch.arange(5)])
    torch.testing.assert_close(heads(x), plain)


def test_the_layer_keeps_identity_parameters_and_keys():
    network = mlp()
    layer, weight, keys = network[2], network[2].weight, list(network.state_dict())
    heads = promote_output_layers(network)
    assert network[2] is layer and layer.weight is weight and isinstance(layer, MultiHeadLinear)
    assert list(network.state_dict()) == keys
    heads.add_head()
    assert [k for k in network.state_dict() if k not in keys] == [
        "2.extra_heads.0.weight",
        "2.extra_heads.0.bias",
    ]


def test_target_and_deep_copies_follow_the_pointer():
    network, x = mlp(), torch.randn(2, 4)
    target = copy.deepcopy(network)
    heads = promote_output_layers(network)
    twin = promote_output_layers(target, layers=heads.layers, pointer=heads.pointer)
    heads.add_head(), twin.add_head()
    later = copy.deepcopy(network)
    with heads.pointer.at(1):
        assert torch.equal(target(x), twin(x, head=1))
        assert torch.equal(later(x), heads(x, head=1))


def test_heads_of_other_sizes():
    network = mlp()
    heads = promote_output_layers(network)
    heads.add_head(num_actions=5)
    x = torch.randn(2, 4)
    values = heads.all_heads(x)
    assert values.shape == (2, 2, 5) and torch.isinf(values[0, :, 3:]).all()
    rows = heads.per_row(x, heads=torch.tensor([1, 0]))
    torch.testing.assert_close(rows[0], values[1, 0])
    with pytest.raises(OwlValueError, match="one output layer"):
        promote_output_layers(Dueling()).add_head(num_actions=5)
    with pytest.raises(OwlValueError, match="init"):
        heads.add_head(init="warm")


@pytest.mark.parametrize("bias", [True, False])
def test_zero_answers_zero_and_the_others_as_before(bias):
    network = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3, bias=bias))
    x = torch.randn(5, 4)
    before = network(x)
    heads = promote_output_layers(network)
    index = heads.add_head(init="zero", num_actions=2)
    assert heads(x, head=index).eq(0).all() and heads(x, head=index).shape == (5, 2)
    assert torch.equal(heads(x, head=0), before)


def test_copy_starts_from_the_active_head():
    heads = promote_output_layers(Dueling())
    heads.add_head()
    heads.pointer.index = 1
    heads.add_head(init="copy")
    pairs = zip(heads.head_parameters(1).values(), heads.head_parameters(2).values(), strict=True)
    assert all(torch.equal(a, b) and a is not b for a, b in pairs)


@pytest.mark.parametrize("bias", [True, False])
def test_optimizer_grows_and_demotion_undoes_everything(bias):
    network = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3, bias=bias))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    keys, count = list(network.state_dict()), len(optimizer.param_groups[0]["params"])
    heads = promote_output_layers(network)
    heads.add_head(optimizer=optimizer)
    heads.add_head(init="copy", optimizer=optimizer)
    x = torch.randn(3, 4)
    for k in range(3):
        heads.pointer.index = k
        for parameter in network.parameters():
            parameter.grad = None
        network(x).square().mean().backward()
        optimizer.step()
    expected = heads(x, head=2).detach().clone()
    momentum = optimizer.state[network[2].extra_heads[1].weight]["exp_avg"]
    assert heads.demote(2, optimizer=optimizer) is network
    assert type(network[2]) is nn.Linear and list(network.state_dict()) == keys
    assert len(optimizer.param_groups[0]["params"]) == count
    assert optimizer.state[network[2].weight]["exp_avg"] is momentum
    torch.testing.assert_close(network(x), expected)
    promote_output_layers(network)  # and again


def test_demotion_keeps_head_zero_as_it_is():
    network, x = mlp(), torch.randn(2, 4)
    expected = network(x)
    heads = promote_output_layers(network)
    heads.add_head()
    heads.demote(0)
    assert torch.equal(network(x), expected)


def test_a_second_promotion_is_refused():
    network = mlp()
    promote_output_layers(network)
    with pytest.raises(OwlStateError, match="already has heads"):
        promote_output_layers(network)


@pytest.mark.parametrize("head", [-1, 1, True, 0.0, "a"])
def test_bad_head_ids(head):
    heads = promote_output_layers(mlp())
    for call in (
        lambda: heads(torch.zeros(1, 4), head=head),
        lambda: heads.head_parameters(head),
        lambda: heads.demote(head),
    ):
        with pytest.raises(OwlError, match="expected"):
            call()


def test_shared_and_head_parameters_split_the_module():
    network = Dueling()
    heads = promote_output_layers(network)
    heads.add_head()
    names = {*heads.shared_parameters(), *heads.head_parameters(0), *heads.head_parameters(1)}
    assert names == {name for name, _ in network.named_parameters()}
    assert set(heads.shared_parameters()) == {"features.0.weight", "features.0.bias"}


def test_the_search_keeps_every_module_s_mode():
    network = nn.Sequential(nn.Linear(4, 6), nn.Dropout(), nn.Linear(6, 3))
    network[1].eval()
    find_output_layers(network)
    assert network.training and not network[1].training
    assert isinstance(promote_output_layers(network), PromotedNetwork)


@pytest.mark.parametrize("count", [0, -1, True, 2.0, "a"])
def test_bad_numbers_of_actions(count):
    heads = promote_output_layers(mlp())
    with pytest.raises(OwlValueError, match="num_actions is"):
        heads.add_head(num_actions=count)
    assert heads.num_heads == 1


def test_names_come_in_a_list_and_inputs_must_fit():
    with pytest.raises(OwlError, match=r"expected a list of names, \['2'\]"):
        promote_output_layers(mlp(), layers="2")
    with pytest.raises(OwlValueError, match="could not be called with inputs of shape"):
        promote_output_layers(mlp(), example=torch.zeros(1, 9))


def test_a_kept_head_that_was_never_stepped_takes_no_other_head_s_state():
    network = mlp()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    heads = promote_output_layers(network)
    network(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    heads.add_head(num_actions=5, optimizer=optimizer)
    heads.demote(1, optimizer=optimizer)
    assert network[2].weight not in optimizer.state
    optimizer.zero_grad()
    network(torch.ones(1, 4)).sum().backward()
    optimizer.step()


class Sampling(TwoOutputs):
    """An actor whose plain call is a random action."""

    def params(self, x):
        return super().forward(x)

    def forward(self, x):
        mean, log_std = self.params(x)
        return mean + log_std.exp() * torch.randn(mean.shape)


@pytest.mark.parametrize(("make", "call"), [(TwoOutputs, None), (Sampling, Sampling.params)])
def test_several_outputs_come_side_by_side_for_every_head(make, call):
    torch.manual_seed(0)
    network = make()
    layers = ["mean", "log_std"]
    state = torch.get_rng_state()
    assert find_output_layers(network, call=call) == layers
    heads = promote_output_layers(network, call=call)
    assert torch.equal(torch.get_rng_state(), state)  # a probe draws nobody's random numbers
    heads.add_head(), heads.add_head()
    x = torch.rand(5, 4)
    ask = network if call is None else network.params

    def slow(head):
        with heads.pointer.at(head):
            return torch.cat(ask(x), 1)

    expected = torch.stack([slow(k) for k in range(3)])
    assert expected.shape == (3, 5, 4)
    torch.testing.assert_close(torch.stack([heads(x, head=k) for k in range(3)]), expected)
    torch.testing.assert_close(heads.all_heads(x), expected)
    rows = torch.tensor([2, 0, 1, 1, 0])
    torch.testing.assert_close(heads.per_row(x, heads=rows), expected[rows, torch.arange(5)])
    assert isinstance(heads, MultiHead)
    if call is not None:  # what regularizers call
        assert torch.equal(heads.module(x), heads(x))
        assert set(heads.shared_parameters()) == {"body.weight", "body.bias"}
    assert heads.demote(1) is network
    torch.testing.assert_close(torch.cat(ask(x), 1), expected[1])


def test_a_bare_linear_layer_is_promoted_through_a_call():
    network = nn.Linear(4, 2)
    heads = promote_output_layers(network, call=lambda network, x: (network(x), x))
    heads.add_head()
    assert heads.layers == ("",) and heads(torch.rand(3, 4), head=1).shape == (3, 6)
    assert type(heads.demote(0)) is nn.Linear


def test_parameters_of_a_bare_linear_layer_are_all_of_its_heads():
    network = nn.Linear(4, 2)
    heads = promote_output_layers(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    heads.add_head(optimizer=optimizer)
    named = dict(network.named_parameters())
    assert heads.shared_parameters() == {}
    own = {**heads.head_parameters(0), **heads.head_parameters(1)}
    assert own.keys() == named.keys() and all(own[name] is named[name] for name in named)
    assert set(heads.head_parameters(0)) == {"weight", "bias"}


def test_the_last_head_is_removed_again():
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    heads = promote_output_layers(network)
    before = copy.deepcopy(network.state_dict())
    for _ in range(2):
        heads.add_head()
    x = torch.randn(3, 4)
    kept = heads.all_heads(x)[:2]
    heads.remove_last_head()
    assert heads.num_heads == 2 and torch.equal(heads.all_heads(x), kept)
    heads.pointer.index = 1
    with pytest.raises(OwlStateError, match="2 heads and 1 is active"):
        heads.remove_last_head()
    heads.pointer.index = 0
    heads.remove_last_head()
    assert list(network.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    with pytest.raises(OwlStateError, match="there is 1 head"):
        heads.remove_last_head()
