"""What is remembered of each task: a bounded sample of all its rows, kept once and shared by all parts.

`TaskMemory` is fed with the rows that a learner stores and keeps a sample of all visits of a task.
`TaskMemories` holds one per task and bounds them together. `Scaling` defines how raw rows become what the
networks see.
"""

from __future__ import annotations

from owlrl.memory.scaling import Scaling
from owlrl.memory.task_memory import TaskMemories, TaskMemory

__all__ = ["Scaling", "TaskMemories", "TaskMemory"]
