"""Encoders against what they stand for: one-hot vectors and ordinary convolutions."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from owlrl.errors import OwlValueError
from owlrl.fisher import squared_gradients
from owlrl.learners.encoders import (
    CHANNEL_SIZES,
    GridConv,
    GridMLP,
    PatchConv,
    check_cells,
    default_trunk,
    mlp,
    one_hot_cells,
)


def images(batch: int) -> torch.Tensor:
    return torch.stack([torch.randint(size, (batch, 7, 7)) for size in CHANNEL_SIZES], dim=-1).to(torch.uint8)


def test_grid_mlp_is_an_mlp_on_one_hot_cells():
    trunk = GridMLP(hidden=(6, 5)).double()
    image = images(4)
    cells = [F.one_hot(image[..., c].long(), size) for c, size in enumerate(CHANNEL_SIZES)]
    one_hot = torch.cat(cells, dim=-1).flatten(1).double()
    torch.testing.assert_close(trunk(image), trunk.layers(one_hot))
    torch.testing.assert_close(trunk(image.float()), trunk.layers(one_hot))


def conv_twin(layer: PatchConv) -> nn.Conv2d:
    inputs, outputs = layer.linear.in_features // 4, layer.linear.out_features
    twin = nn.Conv2d(inputs, outputs, 2).to(layer.linear.weight.dtype)
    with torch.no_grad():
        # patches are ordered (row, column, channel); Conv2d's weight is (out, channel, row, column)
        twin.weight.copy_(layer.linear.weight.view(outputs, 2, 2, inputs).permute(0, 3, 1, 2))
        twin.bias.copy_(layer.linear.bias)
    return twin


@settings(deadline=None, max_examples=20)
@given(batch=st.integers(0, 3), height=st.integers(2, 5), width=st.integers(2, 5), inputs=st.integers(1, 3))
def test_patch_conv_equals_conv2d(batch, height, width, inputs):
    layer = PatchConv(inputs, 4).double()
    x = torch.randn(batch, height, width, inputs, dtype=torch.float64)
    expected = conv_twin(layer)(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("one_hot", [False, True])
def test_grid_conv_is_the_paper_s_network(one_hot):
    trunk = GridConv(one_hot=one_hot).double()
    first, second, third = (conv_twin(layer) for layer in trunk.convolutions)
    x = images(3)
    cells = one_hot_cells(x).view(3, 7, 7, 20) if one_hot else x
    y = F.max_pool2d(F.relu(first(cells.double().permute(0, 3, 1, 2))), 2)
    y = F.relu(third(F.relu(second(y))))
    torch.testing.assert_close(trunk(x), F.relu(trunk.out(y.flatten(1))))


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (gym.spaces.Box(0, 255, (7, 7, 3), np.uint8), GridMLP),
        (gym.spaces.Box(0, 255, (9, 9, 3), np.uint8), GridMLP),
        (gym.spaces.Box(0, np.tile(np.uint8([10, 5, 2]), (16, 16, 1)), dtype=np.uint8), GridMLP),
        (gym.spaces.Box(-1, 1, (3,), np.float32), nn.Sequential),
    ],
)
def test_default_trunks_fit_their_spaces(space, kind):
    trunk, features = default_trunk(space)
    assert isinstance(trunk, kind)
    sample = torch.zeros(2, *space.shape)
    assert trunk(sample).shape == (2, features)


def test_unknown_observations_ask_for_a_trunk():
    with pytest.raises(OwlValueError, match="pass trunk="):
        default_trunk(gym.spaces.Box(0, 255, (84, 84, 4), np.uint8))
    with pytest.raises(OwlValueError, match="pass trunk="):
        default_trunk(gym.spaces.Discrete(3))


@pytest.mark.parametrize("shape", [(16, 16, 3), (13, 13, 3), (7, 9, 3), (8, 8, 3)])
def test_a_small_picture_is_not_taken_for_a_grid(shape):
    with pytest.raises(OwlValueError, match=r"pass trunk=.*trunk=GridMLP\(\("):
        default_trunk(gym.spaces.Box(0, 255, shape, np.uint8))


def test_cells_are_objects_colours_and_states():
    check_cells("DQN", images(3).numpy())
    picture = images(3).numpy()
    picture[1, 2, 3] = (10, 6, 2)
    with pytest.raises(
        OwlValueError, match=r"DQN: the observation has values up to \[10, 6, 2\].*\[10, 5, 2\]"
    ):
        check_cells("DQN", picture)


def test_mlp_has_the_sizes_asked_for():
    assert [m.out_features for m in mlp(3, (4, 5)) if isinstance(m, nn.Linear)] == [4, 5]


def test_grid_mlp_sums_columns_as_the_plain_product_does():
    image = images(9)
    trunk = GridMLP(hidden=(16, 8)).double()
    plain = copy.deepcopy(trunk)
    expected = plain.layers(one_hot_cells(image).double())
    with torch.no_grad():
        torch.testing.assert_close(trunk(image), expected)
    found = trunk(image)
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    for own, other in zip(trunk.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)


def test_importance_of_grid_mlp_is_in_closed_form():
    image = images(9)
    trunk = GridMLP(hidden=(16, 8)).double()
    squares = {
        method: squared_gradients(trunk, lambda out: out.sum(1), [image], method=method, chunk_size=4)
        for method in ("hooks", "loop")
    }
    for name, square in squares["loop"].items():
        torch.testing.assert_close(squares["hooks"][name], square)
    assert squares["loop"]["layers.0.weight"].count_nonzero() > 0
