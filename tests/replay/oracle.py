"""The replay's rules written with plain lists: what the arrays are compared with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Step(NamedTuple):
    """One transition; ``action`` is a number that no other step has, so that rows can be told apart."""

    observation: int
    action: int
    reward: float
    next_observation: int
    terminated: bool
    truncated: bool


class Expected(NamedTuple):
    """What a sampled row must say."""

    observation: int
    reward: float
    next_observation: int
    terminated: bool
    discount: float


@dataclass
class Lane:
    """Episodes of one environment in ``frames`` places: an episode of k steps takes k + 1 of them."""

    frames: int
    episodes: list[list[Step]] = field(default_factory=list)
    closed: bool = True

    def add(self, step: Step) -> None:
        if self.closed or self.episodes[-1][-1].next_observation != step.observation:
            self.episodes.append([])
        self.episodes[-1].append(step)
        self.closed = step.terminated or step.truncated
        while sum(len(episode) + 1 for episode in self.episodes) > self.frames:
            if self.episodes[0]:
                self.episodes[0].pop(0)
            else:
                self.episodes.pop(0)

    def steps(self) -> list[Step]:
        return [step for episode in self.episodes for step in episode]

    def newest(self, limit: int) -> Lane:
        """A lane with the last ``limit`` steps, whose last episode is over."""
        kept = Lane(self.frames)
        for episode in reversed(self.episodes):
            part = episode[max(0, len(episode) - limit) :]
            limit -= len(part)
            if part:
                kept.episodes.insert(0, list(part))
        return kept

    def expected(self, n_step: int, gamma: float) -> dict[int, Expected]:
        """Every step's n-step return by the step's action."""
        rows = {}
        for episode in self.episodes:
            for start, step in enumerate(episode):
                reward, discount, last = 0.0, 1.0, step
                for ahead in episode[start : start + n_step]:
                    reward += discount * ahead.reward
                    discount *= gamma
                    last = ahead
                rows[step.action] = Expected(
                    step.observation, reward, last.next_observation, last.terminated, discount
                )
        return rows


def expected_rows(lanes: list[Lane], n_step: int, gamma: float) -> dict[int, Expected]:
    return {action: row for lane in lanes for action, row in lane.expected(n_step, gamma).items()}


def check_rows(batch, expected: dict[int, Expected]) -> None:
    """Every row of ``batch`` (scalar observations) is what the lists say it is."""
    for b, action in enumerate(batch.action.tolist()):
        row = expected[action]
        assert batch.observation[b].item() == row.observation
        assert batch.next_observation[b].item() == row.next_observation
        assert batch.terminated[b].item() is row.terminated
        assert abs(batch.reward[b].item() - row.reward) < 1e-4 * (1 + abs(row.reward))
        assert abs(batch.discount[b].item() - row.discount) < 1e-6


def as_columns(steps: list[Step]) -> tuple[list, ...]:
    return tuple(list(column) for column in zip(*steps, strict=True))
