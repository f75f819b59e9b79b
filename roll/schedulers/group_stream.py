"""Groups without end, sampled for training: step by step, or ahead of it by a bounded number of steps."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from roll.schedulers.admission import Dropped, DropReason
from roll.schedulers.source_share import GroupSource, SourceShare
from roll.schedulers.staleness import staleness_metrics
from roll.trajectories.model import TrajectoryGroup

Spec = TypeVar("Spec")
Published = TypeVar("Published")

OnProgress = Callable[[int, int], None]
"""Called with (finished, wanted) groups."""

Callback = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class StepGroups:
    """What a step trains on.

    Attributes:
        groups: Those of the first source first, in the order of their numbers.
        dropped: Groups that were replaced since the step before, and why.
        is_fallback: Whether no group passed the filter, so that these are unfiltered.
        metrics: ``rollout/…`` numbers: how long the step waited, what is under way, what was dropped, and
            ``rollout/staleness/…`` (:func:`roll.schedulers.staleness.staleness_metrics`).
        aborted: Groups that were under way and not needed (``additional``); they come again.
        notes: What a person should know: that fewer groups than wanted passed the filter, or none.
        late: How many groups of each source it went on without (``spare``); they do not come again.
        replayed: How many groups, the last ones, were learned from before; all others were sampled for this step.
    """

    groups: list[TrajectoryGroup]
    dropped: list[Dropped]
    is_fallback: bool
    metrics: dict[str, float]
    aborted: int = 0
    notes: list[str] = field(default_factory=list)
    late: Mapping[str, int] = field(default_factory=dict)
    replayed: int = 0

    def without_replayed(self) -> StepGroups:
        """Return the same with only what was sampled for this step."""
        return replace(self, groups=self.groups[: len(self.groups) - self.replayed], replayed=0)

    @property
    def consumed(self) -> int:
        """How many groups the step used up: those that it trains on, and those that it dropped or went on without."""
        return len(self.groups) + len(self.dropped) + sum(self.late.values())


class GroupStream:
    """Has groups played, synchronously or ahead of training, and gives each step its groups.

    Its life::

        source = GroupSource(tasks=tasks, play_group=player.play_group, groups_per_step=32)
        stream = GroupStream({"prompts": source}, ratio=1)
        for step in range(1, steps + 1):
            rollout = await stream.next(step, version=step - 1)  # begins what may begin; waits for the oldest
            await asyncio.to_thread(learner.learn, rollout.groups)  # sampling goes on meanwhile
            await stream.update(publish)  # pause, new weights, resume; the step's groups are trained
            checkpoint["rollouts"] = stream.state_dict()
        await stream.close()

    Of each source at most ``floor((1 + ratio) · groups_per_step)`` groups are admitted and not yet trained. Every one
    of them is trained once or counted with a reason; finished work is never thrown away to make room. A group that is
    dropped is replaced by one of the same source, so the shares of a step stay exact. :mod:`roll.schedulers.admission`
    has the rules, and says why no group gets staler than ``ceil(ratio)`` steps.

    With ``ratio=0`` it is synchronous: a step begins exactly its groups and the replacements of those that are dropped,
    nothing runs when :meth:`next` returns, and which groups it gets does not depend on who finishes first. Unless a
    source has ``spare`` groups: once every source has enough, the step waits ``patience`` seconds, and goes on without
    the groups that are late.

    Use it in one event loop.

    Args:
        sources: By the names that they have in checkpoints; a step has the groups of all of them.
        ratio: Steps that sampling may run ahead, a fraction too; 0 is synchronous.
        max_staleness: Versions that a token's weights may be behind; a group with an older one is dropped. ``None`` for
            what admission guarantees. Where weights are published every k steps only, add k - 1.
        pause: Called before new weights are published, for instance to freeze engines.
        resume: Called after.
        patience: Seconds that a step waits, once it has enough groups, for older ones before it goes on without them.
        clock: Seconds, for metrics.

    Raises:
        ValueError: If the ratio or the patience makes no sense.
    """

    def __init__(
        self,
        sources: Mapping[str, GroupSource[Any]],
        *,
        ratio: float = 0.0,
        max_staleness: int | None = None,
        pause: Callback | None = None,
        resume: Callback | None = None,
        patience: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not 0 <= ratio < float("inf"):
            raise ValueError(f"async_generation_ratio={ratio}: must be a number of steps, at least 0")
        if not patience >= 0:
            raise ValueError(f"patience={patience}: must be at least 0 seconds")
        self._shares = {name: SourceShare(source, ratio, max_staleness) for name, source in sources.items()}
        self._pause, self._resume = pause, resume
        self._patience = patience
        self._clock = clock
        self._changed = asyncio.Event()
        self._failure: Exception | None = None
        self._held = False
        self._closed = False

    @property
    def counts(self) -> dict[str, int]:
        """Groups so far: ``admitted``, ``trained``, and dropped by reason; the rest is under way (:attr:`live`)."""
        return dict(sum((share.books.counts for share in self._shares.values()), Counter()))

    @property
    def live(self) -> int:
        """Groups admitted and neither trained nor dropped."""
        return sum(share.books.live for share in self._shares.values())

    @property
    def capacity(self) -> int:
        """Most groups that are admitted and not yet trained."""
        return sum(share.books.capacity for share in self._shares.values())

    @property
    def groups_per_step(self) -> int:
        """Groups that a step trains."""
        return sum(share.books.groups_per_step for share in self._shares.values())

    @property
    def max_staleness(self) -> int:
        """Versions that a token's weights may be behind."""
        return max(share.max_staleness for share in self._shares.values())

    def position(self, name: str) -> int:
        """Return the number of the first group of a source that has never begun."""
        return self._shares[name].books.unfinished()[0]

    async def next(self, step: int, version: int, on_progress: OnProgress | None = None) -> StepGroups:
        """Wait for the groups of a step.

        Args:
            step: Number of the step, for messages.
            version: The weights that it trains. The groups of the step before count as trained.
            on_progress: Told how many groups of the step are finished.

        Raises:
            RolloutError: If every group of a source that was tried failed; the message holds the first error.
            RuntimeError: If the stream is closed.
        """
        if self._closed:
            raise RuntimeError("the stream of groups is closed")
        self.trained()
        begun = self._clock()
        for share in self._shares.values():
            self._begin_groups(share)
        await self._wait(version, on_progress)
        parts = {name: share.take(step, version) for name, share in self._shares.items()}
        if not all(part.is_fallback for part in parts.values()):
            # Unfiltered groups are for a step that has nothing else.
            parts = {name: self._shares[name].without_fallback(part) for name, part in parts.items()}
        groups = [group for part in parts.values() for group in part.groups]
        dropped = [each for part in parts.values() for each in part.dropped]
        return StepGroups(
            groups,
            dropped,
            is_fallback=any(part.is_fallback for part in parts.values()),
            metrics=self._metrics(groups, dropped, version, self._clock() - begun),
            aborted=sum(share.aborted for share in self._shares.values()),
            late={name: share.late for name, share in self._shares.items() if share.late},
            notes=[
                f"{name}: {part.note}" if len(parts) > 1 else part.note for name, part in parts.items() if part.note
            ],
        )

    def trained(self) -> None:
        """Take note that the step's groups, if there is a step, are trained and engines have the new weights.

        Further groups begin, but not with ``ratio=0``: an evaluation that comes next has the engines to itself.
        """
        for share in self._shares.values():
            if share.books.in_training:
                share.trained()
                if share.books.capacity > share.books.groups_per_step:
                    self._begin_groups(share)

    async def update(self, publish: Callable[[], Awaitable[Published]]) -> Published:
        """Publish new weights while no group begins, then count the step as trained; returns what publishing does.

        Groups under way go on under the new weights. ``resume`` is called also when publishing fails.
        """
        self._held = True
        try:
            if self._pause is not None:
                await self._pause()
            try:
                published = await publish()
            finally:
                if self._resume is not None:
                    await self._resume()
        finally:
            self._held = False
        self.trained()
        return published

    def state_dict(self) -> dict[str, Any]:
        """Return what to remember of each source, as JSON: how things stood when the last step was trained.

        Groups that were under way then begin anew after a resume; no group is trained twice, and none is left out.
        """
        return {name: dict(share.state) for name, share in self._shares.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another run stopped, before the first :meth:`next`; a source that is new begins at its beginning.

        Raises:
            RuntimeError: If groups were begun already.
        """
        for name, share in self._shares.items():
            if name in state:
                share.begin_at(int(state[name]["next"]), [int(number) for number in state[name]["unfinished"]])

    def begin_at(self, position: int) -> None:
        """Begin behind so many groups of the whole run; before the first :meth:`next`.

        Several sources begin with whole steps: some groups may be left out, none comes again.

        Raises:
            RuntimeError: If groups were begun already.
        """
        steps = -(-position // self.groups_per_step)
        for share in self._shares.values():
            share.begin_at(position if len(self._shares) == 1 else steps * share.books.groups_per_step, [])

    async def close(self) -> None:
        """Cancel all that is under way. Closing twice is harmless."""
        self._closed = True
        for share in self._shares.values():
            await share.cancel()

    def _begin_groups(self, share: SourceShare) -> None:
        if self._held or self._closed or self._failure is not None:
            return
        for number in share.books.admit():
            share.tasks[number] = asyncio.get_running_loop().create_task(self._run(share, number))

    async def _run(self, share: SourceShare, number: int) -> None:
        """Play one group and enter it in the books."""
        share.playing.add(number)
        try:
            group = await share.source.play_group(share.source.tasks(number))
        except Exception as failure:
            # Nobody may be waiting now; the next call of next() raises it.
            self._failure = self._failure or failure
        else:
            share.judge(number, group)
            # In the same turn of the event loop, so that an engine that waits for quiet does not start in between.
            self._begin_groups(share)
        finally:
            share.tasks.pop(number, None)
            share.playing.discard(number)
            self._changed.set()

    async def _wait(self, version: int, on_progress: OnProgress | None) -> None:
        """Wait until it is clear of every source which groups the step has."""
        waiting = list(self._shares.values())
        clock, until = asyncio.get_running_loop().time, None
        while waiting:
            if self._failure is not None:
                failure = self._failure
                await self.close()
                raise failure
            self._changed.clear()
            if not all(share.books.has_enough for share in waiting):
                until = None
            elif until is None:
                until = clock() + self._patience
            is_over = until is not None and clock() >= until
            waiting = [share for share in waiting if not await self._has_chosen(share, version, is_over)]
            if on_progress is not None:
                on_progress(sum(share.done for share in self._shares.values()), self.groups_per_step)
            if waiting:
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(until):
                        await self._changed.wait()

    async def _has_chosen(self, share: SourceShare, version: int, without_late: bool) -> bool:
        """Choose the step's groups of a source, if they are there; what was begun beyond them is aborted."""
        while (chosen := share.books.choose(without_late)) is not None:
            if not share.drop_stale(chosen, version):
                await share.settle(chosen)
                return True
            self._begin_groups(share)
        return False

    def _metrics(
        self, groups: list[TrajectoryGroup], dropped: list[Dropped], version: int, waited: float
    ) -> dict[str, float]:
        reasons = Counter(each.reason for each in dropped)
        metrics = {
            "rollout/wait_seconds": waited,
            "rollout/groups_running": float(sum(share.books.running for share in self._shares.values())),
            "rollout/groups_ready": float(sum(share.books.ready for share in self._shares.values())),
        }
        for reason in (DropReason.FILTERED, DropReason.FAILED, DropReason.STALE):
            metrics[f"rollout/groups_{reason}"] = float(reasons[reason])
        metrics["rollout/groups_late"] = float(sum(share.late for share in self._shares.values()))
        stale = staleness_metrics(groups, version)
        return metrics | {f"rollout/staleness/{name}": value for name, value in stale.items()}


async def play_all(
    tasks: Sequence[Spec], play_group: Callable[[Spec], Awaitable[TrajectoryGroup]], at_a_time: int | None = None
) -> list[TrajectoryGroup]:
    """Play every task of a list once: an evaluation is a stream of one step.

    A group whose members broke is one of the results. An engine that fails ends it: the others are cancelled, and its
    exception comes out unchanged.

    Args:
        tasks: What to play.
        play_group: Plays one.
        at_a_time: Tasks under way at the same time; ``None`` for all.

    Returns:
        One group per task, in order.
    """
    if not tasks:
        return []
    free: AbstractAsyncContextManager[object] = nullcontext() if at_a_time is None else asyncio.Semaphore(at_a_time)

    async def play(task: Spec) -> TrajectoryGroup:
        async with free:
            return await play_group(task)

    source = GroupSource(tasks=tasks.__getitem__, play_group=play, groups_per_step=len(tasks), replace_failed=False)
    stream = GroupStream({"tasks": source})
    try:
        return (await stream.next(step=0, version=0)).groups
    finally:
        await stream.close()
