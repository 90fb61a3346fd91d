"""MultiHeadQ: heads grown at any time, one pass for all, idle heads untouched."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from owlrl.errors import OwlError, OwlStateError, OwlTypeError, OwlValueError
from owlrl.heads import DuelingHead, MultiHeadQ, dueling_q, promote_output_layers
from owlrl.protocols import MultiHead


def mlp_head(features: int, actions: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 7), nn.ReLU(), nn.Linear(7, actions))


KINDS = {"linear": {}, "dueling": {"dueling": True}, "mlp": {"head": mlp_head}}


def make(kind="linear", heads=1, features=5, actions=3, inputs=4, **options) -> MultiHeadQ:
    trunk = nn.Sequential(nn.Linear(inputs, features), nn.ReLU())
    q = MultiHeadQ(trunk, features, actions, **KINDS[kind], **options).double()
    for _ in range(heads - 1):
        q.add_head()
    return q


def slow_output(q: MultiHeadQ, observation: torch.Tensor, head: int) -> torch.Tensor:
    """The definition: the trunk, then that head alone."""
    return q.heads[head](q.trunk(observation))


def test_satisfies_the_protocol():
    assert isinstance(make(), MultiHead)


def test_dueling_q_by_hand():
    head = DuelingHead(2, 3).double()
    x = torch.randn(4, 2, dtype=torch.float64)
    value, advantage = head.value(x), head.advantage(x)
    expected = torch.stack([value[b, 0] + advantage[b] - advantage[b].sum() / 3 for b in range(4)])
    torch.testing.assert_close(head(x), expected)
    torch.testing.assert_close(dueling_q(value, advantage), expected)


@settings(deadline=None, max_examples=30)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    heads=st.integers(1, 6),
    batch=st.integers(0, 5),
    actions=st.integers(1, 4),
    grad=st.booleans(),
)
def test_all_heads_and_per_row_equal_the_loop(kind, heads, batch, actions, grad):
    q = make(kind, heads, actions=actions)
    observation = torch.randn(batch, 4, dtype=torch.float64)
    rows = torch.randint(heads, (batch,))
    with torch.set_grad_enabled(grad):
        got, per_row = q.all_heads(observation), q.per_row(observation, heads=rows)
        expected = torch.stack([slow_output(q, observation, k) for k in range(heads)])
    assert got.shape == (heads, batch, actions)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(per_row, expected[rows, torch.arange(batch)])
    for k in range(heads):
        torch.testing.assert_close(q(observation, head=k), expected[k])


@pytest.mark.parametrize("kind", ["linear", "dueling"])
def test_one_trunk_pass_for_all_heads(kind):
    q, calls = make(kind, heads=9), []
    q.trunk.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        q.all_heads(torch.zeros(2, 4, dtype=torch.float64))
        q.per_row(torch.zeros(2, 4, dtype=torch.float64), heads=torch.tensor([1, 3]))
    assert len(calls) == 2


WRITES = {
    "optimizer": lambda q, p: torch.optim.SGD([p], lr=1.0).step() if p.grad is None else None,
    "data.copy_": lambda q, p: p.data.copy_(torch.full_like(p, 3.0)),
    "in place": lambda q, p: p.detach().fill_(3.0),
    "data =": lambda q, p: setattr(p, "data", torch.full_like(p, 3.0)),
    "to float32 and back": lambda q, p: (q.float(), p.data.mul_(2.0), q.double()),
    "load_state_dict": lambda q, p: q.load_state_dict(
        {k: torch.full_like(v, 0.5) for k, v in q.state_dict().items()}
    ),
}


@pytest.mark.parametrize("write", sorted(WRITES))
@pytest.mark.parametrize("kind", ["linear", "dueling"])
def test_the_stack_never_goes_stale(kind, write):
    q = make(kind, heads=4)
    observation = torch.randn(3, 4, dtype=torch.float64)
    with torch.no_grad():
        q.all_heads(observation)
        WRITES[write](q, next(q.heads[2].parameters()))
        expected = torch.stack([slow_output(q, observation, k) for k in range(4)])
        torch.testing.assert_close(q.all_heads(observation), expected)
        q.add_head()
        assert q.all_heads(observation).shape[0] == 5
        torch.testing.assert_close(q.all_heads(observation)[:4], expected)


@pytest.mark.parametrize("fused", [False, True])
def test_training_after_a_stacked_pass_is_seen_by_the_next(fused):
    q = make(heads=3)
    optimizer = torch.optim.Adam(q.parameters(), lr=0.1, fused=fused)
    observation = torch.randn(3, 4, dtype=torch.float64)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            before = q.all_heads(observation).clone()
        optimizer.zero_grad()
        q(observation).sum().backward()
        optimizer.step()
        with torch.no_grad():
            after = q.all_heads(observation)
            torch.testing.assert_close(after[0], slow_output(q, observation, 0))
        assert not torch.equal(before[0], after[0])


def test_copies_do_not_share_weights_through_the_stack():
    q = make(heads=3)
    observation = torch.randn(2, 4, dtype=torch.float64)
    with torch.no_grad():
        q.all_heads(observation)
        target = copy.deepcopy(q)
        expected = target.all_heads(observation).clone()
        for parameter in q.parameters():
            parameter.add_(1.0)
        torch.testing.assert_close(target.all_heads(observation), expected, rtol=0, atol=0)


def test_gradients_of_all_heads_reach_each_head():
    q = make("dueling", heads=3)
    observation = torch.randn(4, 4, dtype=torch.float64)
    q.all_heads(observation).square().sum().backward()
    got = {name: p.grad.clone() for name, p in q.named_parameters()}
    q.zero_grad()
    sum(slow_output(q, observation, k).square().sum() for k in range(3)).backward()
    for name, parameter in q.named_parameters():
        torch.testing.assert_close(got[name], parameter.grad)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_heads_that_do_not_occur_get_no_gradient(kind):
    q = make(kind, heads=4)
    q.per_row(torch.randn(3, 4, dtype=torch.float64), heads=torch.tensor([1, 3, 1])).sum().backward()
    has_gradient = [all(p.grad is not None for p in head.parameters()) for head in q.heads]
    assert has_gradient == [False, True, False, True]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_heads_may_differ_in_their_actions(kind):
    q = make(kind, actions=3)
    q.add_head(num_actions=5)
    observation = torch.randn(2, 4, dtype=torch.float64)
    values = q.all_heads(observation)
    assert values.shape == (2, 2, 5)
    assert torch.isinf(values[0, :, 3:]).all() and (values[0, :, 3:] < 0).all()
    torch.testing.assert_close(values[0, :, :3], slow_output(q, observation, 0))
    torch.testing.assert_close(values[1], slow_output(q, observation, 1))
    rows = q.per_row(observation, heads=torch.tensor([1, 0]))
    torch.testing.assert_close(rows[0], values[1, 0])
    assert rows[1].argmax() < 3


def test_deep_copies_follow_the_active_head():
    q = make(heads=2)
    target = copy.deepcopy(q)
    observation = torch.randn(2, 4, dtype=torch.float64)
    q.activate(1)
    torch.testing.assert_close(target(observation), slow_output(target, observation, 1))
    with q.pointer.at(0):
        torch.testing.assert_close(target(observation), slow_output(target, observation, 0))
    assert q.pointer.head == 1


OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.05),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1),
}


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_idle_heads_stay_bit_identical(name, set_to_none):
    q = make()
    optimizer = OPTIMIZERS[name](q.parameters())
    observation = torch.randn(8, 4, dtype=torch.float64)

    def train(head: int) -> None:
        q.activate(head)
        for _ in range(5):
            optimizer.zero_grad(set_to_none=set_to_none)
            (q(observation) - head).square().mean().backward()
            optimizer.step()

    train(0)
    q.add_head(optimizer=optimizer)
    kept = copy.deepcopy(q.heads[0].state_dict())
    train(1)
    assert all(torch.equal(kept[k], v) for k, v in q.heads[0].state_dict().items())
    kept = copy.deepcopy(q.heads[1].state_dict())
    train(0)
    assert all(torch.equal(kept[k], v) for k, v in q.heads[1].state_dict().items())


@pytest.mark.parametrize(
    "options", [{}, {"dueling": True}, {"head": lambda f, a: nn.Sequential(nn.Linear(f, 7), nn.Linear(7, a))}]
)
def test_init_zero_answers_zero_and_learns(options):
    torch.manual_seed(0)
    q = MultiHeadQ(nn.Linear(4, 8), 8, 3, **options)
    index, x = q.add_head(init="zero"), torch.randn(5, 4)
    assert q(x, head=index).eq(0).all() and q(x, head=0).ne(0).any()
    optimizer = torch.optim.Adam(q.parameters(), lr=0.05)
    for _ in range(200):
        loss = (q(x, head=index) - torch.eye(5)[:, :3]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.05


def test_init_zero_needs_a_linear_layer():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, features):
            return self.scale * features

    q = MultiHeadQ(nn.Linear(4, 3), 3, 3, head=lambda f, a: Scale())
    with pytest.raises(OwlValueError, match="needs a linear layer"):
        q.add_head(init="zero")
    assert q.num_heads == 1


def test_init_copy_starts_equal_and_apart():
    q = make("dueling", heads=2)
    q.activate(1)
    index = q.add_head(init="copy")
    for new, old in zip(q.heads[index].parameters(), q.heads[1].parameters(), strict=True):
        assert torch.equal(new, old) and new.data_ptr() != old.data_ptr()
    with torch.no_grad():
        q.heads[index].value.weight.add_(1.0)
    assert not torch.equal(q.heads[index].value.weight, q.heads[1].value.weight)


def test_new_heads_take_device_dtype_and_mode():
    q = make("mlp").eval()
    head = q.heads[q.add_head()]
    assert next(head.parameters()).dtype == torch.float64 and not head.training


@pytest.mark.parametrize("kind", ["linear", "dueling", "mlp"])
def test_state_dict_round_trip_grows_heads(kind):
    q = make(kind, heads=3)
    if kind != "mlp":
        q.add_head(num_actions=6)
    other = make(kind)
    other.load_state_dict(q.state_dict())
    observation = torch.randn(3, 4, dtype=torch.float64)
    torch.testing.assert_close(other.all_heads(observation), q.all_heads(observation), rtol=0, atol=0)


def test_parameters_by_name_split_the_module():
    q = make("dueling", heads=2)
    names = [*q.shared_parameters(), *q.head_parameters(0), *q.head_parameters(1)]
    assert names == [name for name, _ in q.named_parameters()]
    lookup = dict(q.named_parameters())
    assert all(lookup[n] is p for n, p in (q.head_parameters(1) | q.shared_parameters()).items())


def test_the_optimizer_must_hold_the_network():
    q = make()
    stranger = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    with pytest.raises(OwlValueError, match="does not hold the parameters"):
        q.add_head(optimizer=stranger)
    assert q.num_heads == 1


def test_numpy_numbers_are_numbers():
    q = MultiHeadQ(nn.Linear(4, 8), np.int64(8), np.int64(2))
    assert q.add_head(num_actions=np.int32(3)) == 1
    assert (type(q.num_actions), q(torch.zeros(1, 4), head=np.int64(1)).shape[1]) == (int, 3)


@pytest.mark.parametrize("head", [-1, 2, True, 1.0, "a", None])
@pytest.mark.parametrize("call", ["call", "activate", "head_parameters"])
def test_bad_head_ids(head, call):
    q = make(heads=2)
    if head is None and call == "call":
        return  # None is the active head
    calls = {
        "call": lambda: q(torch.zeros(1, 4, dtype=torch.float64), head=head),
        "activate": lambda: q.activate(head),
        "head_parameters": lambda: q.head_parameters(head),
    }
    with pytest.raises(OwlError, match="expected"):
        calls[call]()
    assert q.pointer.head == 0


def test_bad_arguments_are_named_all_at_once():
    with pytest.raises(OwlValueError) as caught:
        MultiHeadQ("trunk", 0, True, dueling=True, head=mlp_head)
    for part in ("trunk is a str", "feature_dim is 0", "num_actions is True", "exclude each other"):
        assert part in str(caught.value)
    with pytest.raises(OwlValueError, match="expected a function head"):
        MultiHeadQ(nn.Identity(), 2, 2, head=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"init": "warm"}, "init"),
        ({"num_actions": 0}, "num_actions"),
        ({"init": "copy", "num_actions": 3}, "copy"),
    ],
)
def test_bad_new_heads_change_nothing(options, message):
    q = make()
    with pytest.raises(OwlValueError, match=message):
        q.add_head(**options)
    assert q.num_heads == 1


def test_a_factory_must_make_modules():
    with pytest.raises(OwlTypeError, match=r"expected an nn\.Module"):
        MultiHeadQ(nn.Identity(), 2, 2, head=lambda f, a: "head")


def test_a_trunk_of_another_size_is_named():
    q = MultiHeadQ(nn.Identity(), 5, 2)
    with pytest.raises(OwlValueError, match="pass feature_dim=3"):
        q(torch.zeros(1, 3))


def test_repr_shows_heads_and_the_active_one():
    assert "num_heads=2, active=0" in repr(make(heads=2))


def test_pointer_modes_inside_the_library():
    q = make(heads=2)
    observation = torch.randn(3, 4, dtype=torch.float64)
    with q.pointer.at(q.pointer.ALL):
        torch.testing.assert_close(q(observation).view(2, 3, 3), q.all_heads(observation))
        with pytest.raises(OwlTypeError, match="several heads"):
            _ = q.pointer.head
    with q.pointer.at(torch.tensor([1, 0, 1])):
        torch.testing.assert_close(q(observation), q.per_row(observation, heads=torch.tensor([1, 0, 1])))


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        (torch.tensor([0, -1]), "heads has -1"),
        (torch.tensor([0, 2]), "heads has 2"),
        (torch.tensor([0]), r"shape \(1,\)"),
        (torch.tensor([[0, 1]]), "shape"),
        (torch.tensor([True, False]), "expected an int64 tensor"),
        (torch.tensor([0.0, 1.0]), "expected an int64 tensor"),
        ([0, 1], "heads is list"),
    ],
)
def test_bad_heads_per_row(heads, message):
    for network in (make(heads=2), _promoted()):
        with pytest.raises(OwlError, match=message):
            network.per_row(torch.zeros(2, 4, dtype=torch.float64), heads=heads)


def _promoted():
    network = promote_output_layers(nn.Sequential(nn.Linear(4, 3)).double())
    network.add_head()
    return network


@pytest.mark.parametrize("dueling", [False, True])
def test_the_last_head_is_removed_again(dueling):
    q, x = MultiHeadQ(nn.Linear(4, 8), 8, 2, dueling=dueling), torch.randn(3, 4)
    q.add_head()
    q.add_head(num_actions=3)
    kept = q(x, head=0), q(x, head=1)
    with torch.no_grad():
        q.all_heads(x)
    q.remove_last_head()
    assert q.num_heads == 2 and torch.allclose(q.all_heads(x), torch.stack(kept))
    q.remove_last_head()
    q.add_head(num_actions=3)  # as many heads as when it was last looked whether they are equally large
    assert q.all_heads(x).shape == (2, 3, 3)
    q.remove_last_head()
    q.add_head()
    q.activate(1)
    with pytest.raises(OwlStateError, match="2 heads and 1 is active"):
        q.remove_last_head()
    q.activate(0)
    q.remove_last_head()
    with pytest.raises(OwlStateError, match="there is 1 head"):
        q.remove_last_head()
