"""Groups that operators filter and change after they were sampled, before they are learned from or kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from roll.operators import Change, Operator, run_operators
from roll.pipelines.sampling.stream import Groups
from roll.schedulers.group_stream import OnProgress, StepGroups
from roll.schedulers.groups import RolloutError
from roll.trajectories.model import TrajectoryGroup

Published = TypeVar("Published")


class OperatedGroups:
    """Applies a pipeline of operators to the groups of each step.

    A step of which nothing is left has the groups as they were before the operator that dropped the last of them.

    Args:
        stream: What samples.
        operators: The operators.
    """

    def __init__(self, stream: Groups, operators: Sequence[Operator]) -> None:
        self._stream = stream
        self._operators = operators

    async def next(self, step: int, version: int, on_progress: OnProgress | None = None) -> StepGroups:
        """Return the groups of a step, as the operators leave them.

        Raises:
            RolloutError: An operator raised.
        """
        rollout = await self._stream.next(step, version, on_progress)
        left, changes, notes = self._operate(rollout.groups, step)
        metrics = {f"operators/{change.name}/dropped": float(change.dropped) for change in changes}
        metrics |= {f"operators/{change.name}/changed": float(change.changed) for change in changes}
        return replace(rollout, groups=left, metrics={**rollout.metrics, **metrics}, notes=[*rollout.notes, *notes])

    def _operate(
        self, groups: list[TrajectoryGroup], step: int
    ) -> tuple[list[TrajectoryGroup], list[Change], list[str]]:
        left, changes, notes = groups, list[Change](), list[str]()
        for operator in self._operators:
            try:
                kept, (change,) = run_operators([operator], left, lambda group: group.group_id)
            except ValueError as error:
                raise RolloutError(f"step {step}: {error}. Correct operators.experience") from error
            if kept:
                left = kept
                changes.append(change)
            else:
                notes.append(f"the operator {operator.name} would have left no group, so it left all {len(left)}")
        return left, changes, notes

    def position(self, name: str) -> int:
        """Return the number of the first task of a source that has never begun."""
        return self._stream.position(name)

    def trained(self) -> None:
        """Take note that the step's groups are trained."""
        self._stream.trained()

    async def update(self, publish: Callable[[], Awaitable[Published]]) -> Published:
        """Publish new weights while no group begins."""
        return await self._stream.update(publish)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint remembers: of what samples."""
        return self._stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another run stopped."""
        self._stream.load_state_dict(state)

    def begin_at(self, position: int) -> None:
        """Begin behind so many groups of the whole run."""
        self._stream.begin_at(position)

    async def close(self) -> None:
        """Stop what is under way."""
        await self._stream.close()
