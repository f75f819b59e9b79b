"""One source of groups in a stream: its share of every step, its groups under way, and the books on them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from roll.schedulers.admission import Admission, Dropped, DropReason
from roll.schedulers.groups import RolloutError, cancel
from roll.schedulers.staleness import oldest_version
from roll.trajectories.model import TrajectoryGroup

Spec = TypeVar("Spec")

Keep = Callable[[TrajectoryGroup], bool]
"""Whether a group is worth training on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSource(Generic[Spec]):
    """Where groups come from, and how many of them a step has.

    Attributes:
        tasks: Returns what the group of a number is: always the same, for every number from 0 on.
        play_group: Plays it. What it raises ends the stream, whose next step raises it.
        groups_per_step: Groups of a step.
        keep: Which groups are worth training on; others are replaced. ``None`` keeps all.
        most: Groups to try for a step at most, the replaced ones among them; ``None`` for as many again as a step has.
        window: Groups beyond those of a step among which it may pass over stragglers; ``None`` for all.
        additional: Groups under way beyond those that a synchronous step with a filter still needs, so that a
            replacement is at hand. They are aborted when the step is complete, and come again in the next.
        in_rounds: Whether replacements begin only when nothing else of the source is under way, all together.
        spare: Groups that a synchronous step begins beyond its own. It goes on without the latest ones, which are
            aborted and do not come again, so it is biased toward what ends soon.
        replace_failed: Whether a group all of whose members broke is replaced; otherwise it is one of the step's.

    Raises:
        ValueError: If a number makes no sense.
    """

    tasks: Callable[[int], Spec]
    play_group: Callable[[Spec], Awaitable[TrajectoryGroup]]
    groups_per_step: int
    keep: Keep | None = None
    most: int | None = None
    window: int | None = None
    additional: int = 0
    in_rounds: bool = False
    spare: int = 0
    replace_failed: bool = True

    def __post_init__(self) -> None:
        if self.groups_per_step < 1:
            raise ValueError(f"groups_per_step={self.groups_per_step}: must be at least 1")
        if self.most is not None and self.most < self.groups_per_step:
            raise ValueError(f"most={self.most}: a step of {self.groups_per_step} groups tries at least as many")
        if self.spare < 0:
            raise ValueError(f"spare={self.spare}: must be at least 0")
        if self.window is not None and self.window < 0:
            raise ValueError(f"window={self.window}: must be at least 0, or None for all groups under way")


@dataclass(frozen=True, slots=True)
class StepShare:
    """What a step has of one source; see :class:`roll.schedulers.group_stream.StepGroups`."""

    groups: list[TrajectoryGroup]
    dropped: list[Dropped]
    is_fallback: bool
    note: str


class SourceShare:
    """The groups of one source in a stream.

    Args:
        source: What groups there are.
        ratio: Steps that sampling may run ahead.
        max_staleness: Versions that a token's weights may be behind; ``None`` for what admission guarantees.

    Attributes:
        books: Which groups may begin, and what became of them.
        tasks: What plays the groups under way, by their numbers.
        playing: Numbers of those that have really begun.
        chosen: Numbers of the step's groups once that is clear, none if none is worth training on.
        aborted: Groups that were aborted because the step did not need them, and that come again.
        late: Groups that the step went on without, and that do not come again.
        state: What a checkpoint remembers.
    """

    def __init__(self, source: GroupSource[Any], ratio: float, max_staleness: int | None) -> None:
        least = source.groups_per_step + source.spare
        most = least + source.groups_per_step if source.most is None else max(source.most, least)
        additional = source.additional if source.keep else 0
        self.source = source
        self.books = Admission(
            source.groups_per_step,
            ratio,
            source.window,
            most,
            additional,
            in_rounds=source.in_rounds,
            spare=source.spare,
        )
        self.max_staleness = self.books.max_staleness if max_staleness is None else max_staleness
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.playing: set[int] = set()
        self.chosen: list[int] | None = None
        self.aborted = 0
        self.late = 0
        self.state = self._snapshot()
        self._first_error = ""

    @property
    def done(self) -> int:
        """Groups of the step that are finished."""
        return self.source.groups_per_step if self.chosen else min(self.books.ready, self.source.groups_per_step)

    def judge(self, number: int, group: TrajectoryGroup) -> None:
        """Enter a finished group in the books: whether it is worth training on."""
        keep = self.source.keep
        if self.source.replace_failed and all(member.status.is_error for member in group.trajectories):
            self._first_error = self._first_error or str(group.trajectories[0].error if group.trajectories else "")
            self.books.drop(number, group, DropReason.FAILED)
        elif keep is not None and not keep(group):
            self.books.drop(number, group, DropReason.FILTERED)
        else:
            self.books.finish(number, group)

    def drop_stale(self, chosen: list[int], version: int) -> bool:
        """Drop groups that engines sampled with older weights than admission allows; return whether there were any."""
        stale = [number for number in chosen if self._is_stale(self.books.group(number), version)]
        for number in stale:
            self.books.drop(number, self.books.group(number), DropReason.STALE)
        return bool(stale)

    async def settle(self, chosen: list[int]) -> None:
        """Keep to these groups, and abort what was begun beyond a complete step."""
        self.chosen, self.aborted, self.late, unneeded = chosen, 0, 0, list[int]()
        if chosen and self.books.additional:
            unneeded = self.books.take_back(chosen[-1])
            self.aborted = len(self.playing.intersection(unneeded))
        elif chosen and self.books.spare:
            self.late, unneeded = self.books.give_up(chosen)
        await cancel([self.tasks.pop(number) for number in unneeded])

    def take(self, step: int, version: int) -> StepShare:
        """Give the step its groups.

        Raises:
            RolloutError: If there are none.
        """
        chosen, self.chosen = self.chosen or [], None
        groups, dropped = self.books.take(chosen, lambda group: self._is_stale(group, version))
        if not groups:
            raise RolloutError(
                f"step {step}: every one of the {len(dropped)} groups that were tried failed. The first: "
                f"{self._first_error}"
            )
        return StepShare(groups, dropped, not chosen, self._note(len(chosen), len(groups) + len(dropped)))

    def without_fallback(self, part: StepShare) -> StepShare:
        """Return a part without unfiltered groups: other sources have groups that passed."""
        if not part.is_fallback:
            return part
        dropped = sorted(part.dropped + self.books.drop_fallback(), key=lambda each: each.number)
        note = f"none of {len(dropped)} groups passed the filter, so the step has none of them."
        return StepShare([], dropped, False, note)

    def trained(self) -> None:
        """Take note that the step's groups are trained."""
        self.books.trained()
        self.state = self._snapshot()

    def begin_at(self, position: int, again: list[int]) -> None:
        """Begin with these groups, then those from a position on.

        Raises:
            RuntimeError: If groups were begun already.
        """
        if self.books.counts["admitted"]:
            raise RuntimeError("tell a stream where to begin before its first group does")
        self.books.begin_at(position, again)
        self.state = self._snapshot()

    async def cancel(self) -> None:
        """Cancel all that is under way."""
        tasks, self.tasks = self.tasks, {}
        await cancel(tasks.values())
        self.books.cancel()

    def _is_stale(self, group: TrajectoryGroup, version: int) -> bool:
        oldest = oldest_version(group)
        return oldest is not None and version - oldest > self.max_staleness

    def _note(self, chosen: int, tried: int) -> str:
        if not chosen:
            return (
                f"none of {tried} groups passed the filter, so it trains on unfiltered ones. All tasks are too easy or "
                "too hard for the policy, or the reward is always the same."
            )
        if chosen == self.source.groups_per_step:
            return ""
        passed = "were whole" if self.source.keep is None else "passed the filter"
        return f"only {chosen} of {tried} groups {passed}; dynamic_sampling.max_batches bounds how many are tried."

    def _snapshot(self) -> dict[str, Any]:
        following, unfinished = self.books.unfinished()
        return {"next": following, "unfinished": unfinished}
