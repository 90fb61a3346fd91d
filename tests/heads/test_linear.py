"""The stacked products and their gradients against a plain loop."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from owlrl.heads.linear import LinearStack, MultiHeadLinear, pad_columns, product_all
from owlrl.types import HeadPointer


@settings(deadline=None, max_examples=30)
@given(
    heads=st.integers(1, 5),
    batch=st.integers(0, 4),
    outputs=st.integers(1, 3),
    inputs=st.integers(1, 4),
    bias=st.booleans(),
)
def test_products_equal_the_loop(heads, batch, outputs, inputs, bias):
    x, w = torch.randn(batch, inputs).double(), torch.randn(heads, outputs, inputs).double()
    b = torch.randn(heads, outputs).double() if bias else None
    expected = torch.stack([x @ w[k].T + (0 if b is None else b[k]) for k in range(heads)])
    torch.testing.assert_close(product_all(x, w, b), expected)


@pytest.mark.parametrize("bias", [True, False])
def test_the_stack_shares_memory_with_the_layers(bias):
    layers = [nn.Linear(2, 3, bias=bias) for _ in range(4)]
    stack = LinearStack()
    with torch.no_grad():
        weight, biases = stack.weights(layers)
        assert (biases is not None) == bias
        layers[2].weight.mul_(5.0)
        assert torch.equal(weight[2], layers[2].weight)
        again, _ = stack.weights(layers)
        assert again.data_ptr() == weight.data_ptr()
        assert (
            copy.deepcopy(stack).weights([copy.deepcopy(layer) for layer in layers])[0].data_ptr()
            != weight.data_ptr()
        )


@pytest.mark.parametrize("bias", [True, False])
def test_weights_are_packed_where_all_layers_lie_in_the_stack(bias):
    layers, stack = [nn.Linear(2, 3, bias=bias) for _ in range(4)], LinearStack()
    stack.gather(layers)
    packed = stack.packed(layers)
    assert [tuple(tensor.shape) for tensor in packed] == [(4, 3, 2), (4, 3)][: 1 + bias]
    assert torch.equal(packed[0], torch.stack([layer.weight for layer in layers]))
    for moved in (0, 3):  # a layer at either end has another tensor: what the stack holds is not its weight
        own = layers[moved].weight.data
        layers[moved].weight.data = torch.full((3, 2), 7.0)
        found = stack.packed(layers)
        assert [id(tensor) for tensor in found[:4]] == [id(layer.weight) for layer in layers]
        layers[moved].weight.data = own


def test_padding_is_never_the_greedy_action():
    small, large = pad_columns([torch.full((2, 1), -1e9), torch.zeros(2, 3)])
    assert small.argmax(-1).tolist() == [0, 0] and small.shape == large.shape == (2, 3)


def test_a_promoted_layer_answers_for_each_kind_of_pointer():
    pointer = HeadPointer()
    layer = MultiHeadLinear.promote(nn.Linear(2, 3), pointer)
    assert layer.add_head(nn.Linear(2, 3)) == 1 and layer.num_heads == 2
    x = torch.randn(4, 2)
    each = torch.stack(
        [nn.functional.linear(x, layer.linear(k).weight, layer.linear(k).bias) for k in range(2)]
    )
    torch.testing.assert_close(layer(x), each[0])
    with pointer.at(1):
        torch.testing.assert_close(layer(x), each[1])
    with pointer.at(HeadPointer.ALL):
        torch.testing.assert_close(layer(x), each.flatten(0, 1))
    rows = torch.tensor([1, 0, 1, 1])
    with pointer.at(rows):
        torch.testing.assert_close(layer(x), each[rows, torch.arange(4)])
