"""Errors are ours and Python's at once, and several problems make one error."""

import pytest

from owlrl import errors


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.OwlValueError, ValueError),
        (errors.OwlTypeError, TypeError),
        (errors.OwlStateError, RuntimeError),
        (errors.NonFiniteError, ArithmeticError),
    ],
)
def test_errors_derive_from_ours_and_the_builtin(kind, builtin):
    assert issubclass(kind, errors.OwlError) and issubclass(kind, builtin)


def test_problems_are_named_together():
    errors.raise_problems("here", [])
    with pytest.raises(errors.OwlValueError, match=r"^here: one$"):
        errors.raise_problems("here", ["one"])
    with pytest.raises(errors.OwlTypeError, match=r"2 problems:\n  - one\n  - two"):
        errors.raise_problems("here", iter(["one", "two"]), kind=errors.OwlTypeError)
