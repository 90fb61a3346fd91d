"""What earlier tasks cost: an update of the reference DQN with one task against the same with twelve.

    python benchmarks/many_tasks.py [--quick]

OWL with memory distillation as in the experiments, on SC12: at every fourth update one batch of the
memory, as large as the replay's and spread evenly over the earlier tasks, so that its size does not grow
with their number. The last column is one task / twelve: 1 / 1.3 = 0.77 would be 30 % more.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from common import Row, command, side_by_side

from owlrl.experiments import Run, Session

FRAMES = 3_000  # of each task: enough rows for its memory


def updating(tasks: int, blocks: ExitStack) -> Callable[[], object]:
    """The update in the last of ``tasks`` tasks, its block left open."""
    session = Session(Run("SC12", method="owl-memory", policies=("oracle",)))
    agent, names = session.agent, list(session.tasks)[:tasks]
    for name in names[:-1]:
        with session.task(name):
            agent.learn(FRAMES, env=session.env(name))
    blocks.enter_context(session.task(names[-1]))
    agent.learn(FRAMES, env=session.env(names[-1]))
    return lambda: agent.update(agent.replay.sample(agent.config.batch_size))


def main(*, quick: bool = False) -> list[Row]:
    with ExitStack() as blocks:
        contestants = [updating(tasks, blocks) for tasks in (1, 12)]
        one, twelve = side_by_side(contestants, rounds=20 if quick else 150, calls=20)
    return [Row("DQN update with memory distillation, one task against twelve", one, twelve)]


if __name__ == "__main__":
    command(main, __doc__)
