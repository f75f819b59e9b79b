"""How far the rollout of a step is, and how much it samples."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from roll.pipelines.reporting.metrics import Throughput
from roll.pipelines.reporting.sample import sample_of
from roll.schedulers.group_stream import StepGroups
from roll.tracking import Progress
from roll.trajectories.model import Trajectory

_OF_A_LEAD = ("rollout/wait_seconds", "rollout/groups_running", "rollout/groups_ready")


class RolloutMeter:
    """Counts what is sampled, and shows it.

    Args:
        progress: Where to show it.
        members: Members of all groups of a step.
        is_ahead: Whether sampling runs ahead of training: then it goes on all the time, and is counted all the time.

    Attributes:
        on_member: Told every episode that is over.
    """

    def __init__(self, progress: Progress, members: int, is_ahead: bool) -> None:
        self.members = members
        self.finished = 0
        self.on_member: Callable[[Trajectory], None] | None = None
        self._progress = progress
        self._is_ahead = is_ahead
        self._tokens = 0
        self._since = time.perf_counter()

    def begin(self) -> None:
        """A rollout begins."""
        if not self._is_ahead:
            self._since, self._tokens, self.finished = time.perf_counter(), 0, 0

    def member(self, member: Trajectory, greedy: bool) -> None:
        """A member of a group is finished."""
        self._tokens += sum(each.completion_tokens for each in (member, *member.beside))
        if self.on_member is not None:
            self.on_member(member)
        if greedy:
            return
        self.finished += 1
        self._progress.sample(partial(sample_of, member))
        if not self._is_ahead:
            self._show(min(self.finished, self.members), self.members)

    def groups(self, done: int, wanted: int) -> None:
        """So many groups of the step are finished."""
        if self._is_ahead:
            self._show(done, wanted)

    def end(self, rollout: StepGroups) -> dict[str, float]:
        """The rollout is there; return its metrics, and tokens per second."""
        measured, now = Throughput(), time.perf_counter()
        measured.add(rollout.groups, self._tokens, now - self._since)
        self._since, self._tokens = now, 0
        # In step with training, the step waited for all of it, and nothing is under way.
        left_out: Any = () if self._is_ahead else _OF_A_LEAD
        return {**{k: v for k, v in rollout.metrics.items() if k not in left_out}, **measured.report()}

    def _show(self, done: int, wanted: int) -> None:
        self._progress.rollout_progress(done, wanted, self._tokens)
