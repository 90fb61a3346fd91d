"""Checks of arguments that the environments share."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["bool_problem", "grid_problems", "int_problem", "real_problem"]


def int_problem(name: str, value: object, *, least: int, most: int | None = None) -> list[str]:
    """What is wrong with an int argument, as a list of at most one."""
    wanted = f"an int >= {least}" if most is None else f"an int from {least} to {most}"
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return [f"{name} is {value!r} ({type(value).__name__}); expected {wanted}"]
    if value < least or (most is not None and value > most):
        return [f"{name} is {value}; expected {wanted}"]
    return []


def real_problem(name: str, value: object, *, least: float, most: float = math.inf) -> list[str]:
    """What is wrong with a finite number, as a list of at most one."""
    wanted = f"a finite number >= {least:g}" if math.isinf(most) else f"a number from {least:g} to {most:g}"
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return [f"{name} is {value!r} ({type(value).__name__}); expected {wanted}"]
    if not math.isfinite(value) or not least <= value <= most:
        return [f"{name} is {value}; expected {wanted}"]
    return []


def bool_problem(name: str, value: object) -> list[str]:
    """What is wrong with a flag, as a list of at most one."""
    return [] if isinstance(value, bool) else [f"{name} is {value!r}; expected True or False"]


def grid_problems(max_steps: object, render_mode: object, highlight: object, tile_size: object) -> list[str]:
    """What is wrong with the arguments that all MiniGrid tasks take."""
    found = int_problem("max_steps", max_steps, least=1)
    if render_mode not in (None, "rgb_array"):
        found.append(f"render_mode is {render_mode!r}; expected None or 'rgb_array'")
    return found + bool_problem("highlight", highlight) + int_problem("tile_size", tile_size, least=1)
