"""Argument checks take numpy numbers as numbers and name every problem at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from owlrl._arguments import Arguments, own_generator, own_seed
from owlrl.errors import OwlTypeError, OwlValueError


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_integers_of_any_kind_become_plain_ints(value):
    arguments = Arguments("Thing")
    found = arguments.integer("size", value)
    arguments.check()
    assert type(found) is int and found == 3


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), np.float64(0.5)])
def test_numbers_of_any_kind_become_plain_floats(value):
    arguments = Arguments("Thing")
    found = arguments.number("gamma", value, least=0.0, most=1.0)
    arguments.check()
    assert type(found) is float and found == 0.5


@pytest.mark.parametrize("value", [True, np.True_, "3", 3.0, None, 0, -1])
def test_what_is_no_integer_is_refused(value):
    arguments = Arguments("Thing")
    assert arguments.integer("size", value) is value
    with pytest.raises(OwlValueError, match=r"^Thing: size is .*; expected an int >= 1$"):
        arguments.check()


@pytest.mark.parametrize("value", [True, "1", float("nan"), float("inf"), None, 1.5, -0.1])
def test_what_is_no_number_within_bounds_is_refused(value):
    arguments = Arguments("Thing")
    arguments.number("gamma", value, least=0.0, most=1.0)
    with pytest.raises(OwlValueError, match=r"expected a finite number >= 0 and <= 1$"):
        arguments.check()


def test_bounds_can_exclude_their_ends():
    arguments = Arguments("Thing")
    arguments.number("a", 0.0, above=0.0)
    arguments.number("b", 1.0, below=1.0)
    assert [p.split(" is ")[0] for p in arguments.problems] == ["a", "b"]


def test_none_is_taken_only_where_it_may_be():
    arguments = Arguments("Thing")
    assert arguments.integer("seed", None, least=0, none=True) is None
    assert arguments.number("clip", None, above=0.0, none=True) is None
    assert arguments.instance("part", None, int, "3", none=True) is None
    assert arguments.function("encode", None, "of a batch", none=True) is None
    arguments.check()
    arguments.integer("seed", "x", least=0, none=True)
    assert arguments.problems == ["seed is 'x'; expected an int >= 0, or None"]


def test_every_problem_is_named():
    arguments = Arguments("Thing")
    arguments.choice("init", "zeros", ("fresh", "zero"))
    arguments.boolean("double", 1)
    arguments.instance("part", int, int, "3")
    arguments.function("encode", 3, "of a batch")
    arguments.text("name", "")
    arguments.device("device", "toaster")
    arguments.problem(None)
    arguments.problem("own words")
    with pytest.raises(OwlTypeError) as caught:
        arguments.check(kind=OwlTypeError)
    assert [line.strip("- ") for line in str(caught.value).splitlines()] == [
        "Thing: 7 problems:",
        "init is 'zeros'; expected 'fresh' or 'zero'",
        "double is 1; expected True or False",
        "part is the class int; expected 3",
        "encode is 3; expected a function of a batch",
        "name is ''; expected a non-empty str",
        "device is 'toaster'; expected a torch device such as 'cpu' or 'cuda:0'",
        "own words",
    ]


def test_right_values_are_returned_as_they_are():
    arguments = Arguments("Thing")
    assert arguments.choice("init", "zero", ("fresh", "zero")) == "zero"
    assert arguments.boolean("double", np.True_) is True
    assert arguments.device("device", "cpu") == "cpu"
    arguments.check()


def test_a_missing_seed_is_read_from_torch_and_nothing_is_drawn():
    torch.manual_seed(11)
    before = torch.get_rng_state()
    assert own_seed(None) == 11 and own_seed(np.int64(4)) == 4
    assert own_generator(None, 1).random() == own_generator(11, 1).random()
    assert torch.equal(torch.get_rng_state(), before)
