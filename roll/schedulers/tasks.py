"""What is attempted: tasks, where they come from, and how one attempt is asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from roll.trajectories.model import Trajectory

What = TypeVar("What")


@dataclass(frozen=True, slots=True)
class Task(Generic[What]):
    """What the members of a group attempt.

    Attributes:
        what: The level, the prompt: whatever the one who plays it needs to know.
        tag: Its kind, for metrics.
        group_id: Name of the group, unique within the run; keys the sampling noise.
        size: Members of the group.
        number: Its number in the run; smaller ones are served earlier where engines are full.
        domain: Whose rewards grade it, where rewards differ by domain.
    """

    what: What
    tag: str
    group_id: str
    size: int
    number: int = 0
    domain: str = ""


TaskSource = Callable[[int], Task[What]]
"""Returns the task of a position: always the same, for every position from 0 on. So a run resumes from one number."""


class Play(Protocol[What]):
    """Plays a task once, to its end: many turns of an environment, or one response that is graded."""

    def __call__(self, task: Task[What], episode: int, greedy: bool, /) -> Awaitable[Trajectory]:
        """Play the member of number ``episode``, greedily if so asked."""
        ...
