"""What the learners share beside their steps: an environment's spaces, a device and a progress bar."""

from __future__ import annotations

from typing import Any

import torch

from owlrl.errors import install_hint, raise_problems

__all__ = ["auto_device", "check_successor", "progress", "spaces_of"]


def spaces_of(env: Any) -> tuple[Any, Any]:
    """Spaces of one observation and one action, also of a vector of environments."""
    observation = getattr(env, "single_observation_space", env.observation_space)
    return observation, getattr(env, "single_action_space", env.action_space)


def check_successor(where: str, env: Any, before: Any) -> None:
    """Raise unless a learner that was made for the environment ``before`` can go on in ``env``."""
    (seen, acted), (seen_before, acted_before) = spaces_of(env), spaces_of(before)
    kinds = [(space.shape, space.dtype) for space in (seen, seen_before)]
    copies, copies_before = (getattr(each, "num_envs", None) or 1 for each in (env, before))
    problems = []
    if kinds[0] != kinds[1]:
        problems.append(f"env has observations {seen}; expected the like of {seen_before}")
    if acted != acted_before:
        problems.append(f"env has actions {acted}; expected {acted_before}, as at first")
    if copies != copies_before:
        problems.append(f"env is a vector of {copies}; expected {copies_before}, as at first")
    raise_problems(where, problems)


def auto_device(device: torch.device | str) -> torch.device:
    """``device``, where "auto" is a GPU if there is one."""
    found = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(found if device == "auto" else device)


class _Silent:
    """A progress bar that shows nothing."""

    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, frames: int) -> None:
        """Nothing to show."""


def progress(where: str, total: int, *, show: bool) -> Any:
    """A progress bar of ``total`` frames, silent unless ``show``."""
    if not show:
        return _Silent()
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise_problems(where, [f"progress_bar=True needs tqdm ({error}); {install_hint('cli')}"])
    return tqdm(total=total, unit="frame", disable=None)
