"""Groups without end, sampled for training: step by step, or ahead of it by a bounded number of steps."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from roll.schedulers.admission import Admission, Dropped, DropReason
from roll.schedulers.groups import RolloutError
from roll.schedulers.members import cancel
from roll.schedulers.staleness import oldest_version, staleness_metrics
from roll.trajectories.model import TrajectoryGroup

Spec = TypeVar("Spec")

Keep = Callable[[TrajectoryGroup], bool]
"""Whether a group is worth training on."""

OnProgress = Callable[[int, int], None]
"""Called with (finished, wanted) groups."""

Callback = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class StepGroups:
    """What a step trains on.

    Attributes:
        groups: In the order of their numbers.
        dropped: Groups that were replaced since the step before, and why.
        is_fallback: Whether no group passed the filter, so that these are unfiltered.
        aborted: Groups that were under way and not needed (``additional``); they come again.
        notes: What a person should know: that fewer groups than wanted passed the filter, or none.
        metrics: ``rollout/…`` numbers: how long the step waited, what is under way, what was dropped, and
            ``rollout/staleness/…`` (:func:`roll.schedulers.staleness.staleness_metrics`).
    """

    groups: list[TrajectoryGroup]
    dropped: list[Dropped]
    is_fallback: bool
    metrics: dict[str, float]
    aborted: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def consumed(self) -> int:
        """How many groups the step used up: those that it trains on, and those that were dropped."""
        return len(self.groups) + len(self.dropped)


class GroupStream(Generic[Spec]):
    """Has groups played, synchronously or ahead of training, and gives each step its groups.

    Its life::

        stream = GroupStream(source, player.play_group, groups_per_step=32, ratio=1)
        for step in range(1, steps + 1):
            rollout = await stream.next(step, version=step - 1)  # begins what may begin; waits for the oldest
            await asyncio.to_thread(learner.learn, rollout.groups)  # sampling goes on meanwhile
            await stream.update(publish)  # pause, new weights, resume; the step's groups are trained
            checkpoint["rollouts"] = stream.state_dict()
        await stream.close()

    At most ``(1 + ratio) · groups_per_step`` groups are admitted and not yet trained. Every one of them is trained once
    or counted with a reason; finished work is never thrown away to make room. :mod:`roll.schedulers.admission` has the
    rules, and says why no group gets staler than ``ceil(ratio)`` steps.

    With ``ratio=0`` it is synchronous: a step begins exactly its groups and the replacements of those that are dropped,
    nothing runs when :meth:`next` returns, and which groups it gets does not depend on who finishes first.

    Use it in one event loop.

    Args:
        source: Returns what the group of a number is: always the same, for every number from 0 on.
        play_group: Plays it. What it raises ends the stream: :meth:`next` raises it.
        groups_per_step: Groups of a step.
        ratio: Steps that sampling may run ahead, a fraction too; 0 is synchronous.
        keep: Which groups are worth training on; others are replaced. ``None`` keeps all.
        most: Groups to try for a step at most, the replaced ones among them; ``None`` for twice the groups of a step.
        window: Groups beyond those of a step among which it may pass over stragglers; ``None`` for all.
        additional: Groups under way beyond those that a synchronous step with a filter still needs, so that a
            replacement is at hand. They are aborted when the step is complete, and come again in the next.
        in_rounds: Whether replacements begin only when nothing else is under way, all together.
        replace_failed: Whether a group all of whose members broke is replaced; otherwise it is one of the step's.
        max_staleness: Versions that a token's weights may be behind; a group with an older one is dropped. ``None`` for
            what admission guarantees. Where weights are published every k steps only, add k - 1.
        pause: Called before new weights are published, for instance to freeze engines.
        resume: Called after.
        clock: Seconds, for metrics.

    Raises:
        ValueError: If a number makes no sense.
    """

    def __init__(
        self,
        source: Callable[[int], Spec],
        play_group: Callable[[Spec], Awaitable[TrajectoryGroup]],
        *,
        groups_per_step: int,
        ratio: float = 0.0,
        keep: Keep | None = None,
        most: int | None = None,
        window: int | None = None,
        additional: int = 0,
        in_rounds: bool = False,
        replace_failed: bool = True,
        max_staleness: int | None = None,
        pause: Callback | None = None,
        resume: Callback | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        most = 2 * groups_per_step if most is None else most
        _check(groups_per_step, ratio, most, window)
        self._source = source
        self._play_group = play_group
        self._keep = keep
        self._replace_failed = replace_failed
        self._books = Admission(groups_per_step, ratio, window, most, additional if keep else 0, in_rounds)
        self.max_staleness = self._books.max_staleness if max_staleness is None else max_staleness
        self._pause, self._resume = pause, resume
        self._clock = clock
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._playing: set[int] = set()
        self._changed = asyncio.Event()
        self._failure: Exception | None = None
        self._first_error = ""
        self._held = False
        self._closed = False
        self._state = self._snapshot()

    @property
    def counts(self) -> dict[str, int]:
        """Groups so far: ``admitted``, ``trained``, and dropped by reason; the rest is under way (:attr:`live`)."""
        return dict(self._books.counts)

    @property
    def live(self) -> int:
        """Groups admitted and neither trained nor dropped."""
        return self._books.live

    @property
    def capacity(self) -> int:
        """Most groups that are admitted and not yet trained."""
        return self._books.capacity

    @property
    def groups_per_step(self) -> int:
        """Groups that a step trains."""
        return self._books.groups_per_step

    @property
    def in_training(self) -> bool:
        """Whether a step has groups that do not count as trained yet."""
        return self._books.in_training

    @property
    def position(self) -> int:
        """Number of the first group that has never begun."""
        return self._books.unfinished()[0]

    async def next(self, step: int, version: int, on_progress: OnProgress | None = None) -> StepGroups:
        """Wait for the groups of a step.

        Args:
            step: Number of the step, for messages.
            version: The weights that it trains. The groups of the step before count as trained.
            on_progress: Told how many groups of the step are finished.

        Raises:
            RolloutError: If every group that was tried failed; the message holds the first error.
            RuntimeError: If the stream is closed.
        """
        if self._closed:
            raise RuntimeError("the stream of groups is closed")
        if self._books.in_training:
            self.trained()
        begun = self._clock()
        self._begin_groups()
        chosen = await self._wait(version, on_progress)
        aborted = await self._take_back(chosen)
        groups, dropped = self._books.take(chosen, lambda group: self._is_stale(group, version))
        if not groups:
            raise RolloutError(
                f"step {step}: every one of the {len(dropped)} groups that were tried failed. The first: "
                f"{self._first_error}"
            )
        metrics = self._metrics(groups, dropped, version, self._clock() - begun)
        return StepGroups(groups, dropped, not chosen, metrics, aborted, self._notes(chosen, groups, dropped))

    def without_fallback(self, rollout: StepGroups) -> StepGroups:
        """Return a step of this stream without unfiltered groups: other streams have groups that passed."""
        if not rollout.is_fallback:
            return rollout
        dropped = sorted(rollout.dropped + self._books.drop_fallback(), key=lambda each: each.number)
        filtered = float(sum(each.reason is DropReason.FILTERED for each in dropped))
        return replace(
            rollout,
            groups=[],
            dropped=dropped,
            is_fallback=False,
            metrics={**rollout.metrics, "rollout/groups_filtered": filtered},
            notes=[f"none of {len(dropped)} groups passed the filter, so the step has none of them."],
        )

    def trained(self) -> None:
        """Take note that the step's groups are trained and engines have the new weights.

        Further groups begin, but not with ``ratio=0``: an evaluation that comes next has the engines to itself.
        """
        self._books.trained()
        self._state = self._snapshot()
        if self._books.capacity > self._books.groups_per_step:
            self._begin_groups()

    async def update(self, publish: Callable[[], Awaitable[None]]) -> None:
        """Publish new weights while no group begins, then count the step as trained.

        Groups under way go on under the new weights.
        """
        with self.held():
            await publish_paused(publish, self._pause, self._resume)
        self.trained()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let no group begin meanwhile."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def state_dict(self) -> dict[str, Any]:
        """Return what to remember, as JSON: how things stood when the last step was trained.

        Groups that were under way then begin anew after a resume; no group is trained twice, and none is left out.
        """
        return dict(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another run stopped; before the first :meth:`next`.

        Raises:
            RuntimeError: If groups were begun already.
        """
        self._begin_at(int(state["next"]), [int(number) for number in state["unfinished"]])

    def begin_at(self, position: int) -> None:
        """Begin with the group of this number; before the first :meth:`next`.

        Raises:
            RuntimeError: If groups were begun already.
        """
        self._begin_at(position, [])

    async def close(self) -> None:
        """Cancel all that is under way. Closing twice is harmless."""
        self._closed = True
        tasks, self._tasks = self._tasks, {}
        await cancel(tasks.values())
        self._books.cancel()

    def _begin_at(self, position: int, again: list[int]) -> None:
        if self._books.counts["admitted"]:
            raise RuntimeError("tell a stream where to begin before its first group does")
        self._books.begin_at(position, again)
        self._state = self._snapshot()

    def _snapshot(self) -> dict[str, Any]:
        following, unfinished = self._books.unfinished()
        return {"next": following, "unfinished": unfinished}

    def _begin_groups(self) -> None:
        if self._held or self._closed or self._failure is not None:
            return
        for number in self._books.admit():
            self._tasks[number] = asyncio.get_running_loop().create_task(self._run(number))

    async def _run(self, number: int) -> None:
        """Play one group and enter it in the books."""
        self._playing.add(number)
        try:
            group = await self._play_group(self._source(number))
        except Exception as failure:
            # Nobody may be waiting now; the next call of next() raises it.
            self._failure = self._failure or failure
        else:
            self._judge(number, group)
            # In the same turn of the event loop, so that an engine that waits for quiet does not start in between.
            self._begin_groups()
        finally:
            self._tasks.pop(number, None)
            self._playing.discard(number)
            self._changed.set()

    async def _take_back(self, chosen: list[int]) -> int:
        """Abort what was begun beyond a complete step; return how many groups that were."""
        if not chosen or not self._books.additional:
            return 0
        unneeded = self._books.take_back(chosen[-1])
        aborted = len(self._playing.intersection(unneeded))
        await cancel([self._tasks.pop(number) for number in unneeded])
        return aborted

    def _judge(self, number: int, group: TrajectoryGroup) -> None:
        if self._replace_failed and all(member.status.is_error for member in group.trajectories):
            self._first_error = self._first_error or str(group.trajectories[0].error if group.trajectories else "")
            self._books.drop(number, group, DropReason.FAILED)
        elif self._keep is not None and not self._keep(group):
            self._books.drop(number, group, DropReason.FILTERED)
        else:
            self._books.finish(number, group)

    async def _wait(self, version: int, on_progress: OnProgress | None) -> list[int]:
        """Return the numbers of the step's groups, none if none is worth training on."""
        while True:
            if self._failure is not None:
                failure = self._failure
                await self.close()
                raise failure
            chosen = self._books.choose()
            if on_progress is not None:
                wanted = self._books.groups_per_step
                on_progress(wanted if chosen else min(self._books.ready, wanted), wanted)
            if chosen is None:
                self._changed.clear()
                await self._changed.wait()
            elif not self._drop_stale(chosen, version):
                return chosen

    def _drop_stale(self, chosen: list[int], version: int) -> bool:
        """Drop groups that engines sampled with older weights than admission allows; return whether there were any."""
        stale = [number for number in chosen if self._is_stale(self._books.group(number), version)]
        for number in stale:
            self._books.drop(number, self._books.group(number), DropReason.STALE)
        self._begin_groups()
        return bool(stale)

    def _is_stale(self, group: TrajectoryGroup, version: int) -> bool:
        oldest = oldest_version(group)
        return oldest is not None and version - oldest > self.max_staleness

    def _notes(self, chosen: list[int], groups: list[TrajectoryGroup], dropped: list[Dropped]) -> list[str]:
        tried = len(groups) + len(dropped)
        if not chosen:
            return [
                f"none of {tried} groups passed the filter, so it trains on unfiltered ones. All tasks are too easy or "
                "too hard for the policy, or the reward is always the same."
            ]
        if len(chosen) == self.groups_per_step:
            return []
        passed = "were whole" if self._keep is None else "passed the filter"
        return [
            f"only {len(chosen)} of {tried} groups {passed}; dynamic_sampling.max_batches bounds how many are tried."
        ]

    def _metrics(
        self, groups: list[TrajectoryGroup], dropped: list[Dropped], version: int, waited: float
    ) -> dict[str, float]:
        reasons = Counter(each.reason for each in dropped)
        metrics = {
            "rollout/wait_seconds": waited,
            "rollout/groups_running": float(self._books.running),
            "rollout/groups_ready": float(self._books.ready),
        }
        for reason in (DropReason.FILTERED, DropReason.FAILED, DropReason.STALE):
            metrics[f"rollout/groups_{reason}"] = float(reasons[reason])
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

    stream = GroupStream(tasks.__getitem__, play, groups_per_step=len(tasks), replace_failed=False)
    try:
        return (await stream.next(step=0, version=0)).groups
    finally:
        await stream.close()


async def publish_paused(
    publish: Callable[[], Awaitable[None]], pause: Callback | None, resume: Callback | None
) -> None:
    """Publish new weights between a pause and a resume, which comes also when publishing fails."""
    if pause is not None:
        await pause()
    try:
        await publish()
    finally:
        if resume is not None:
            await resume()


def _check(groups_per_step: int, ratio: float, most: int, window: int | None) -> None:
    if groups_per_step < 1:
        raise ValueError(f"groups_per_step={groups_per_step}: must be at least 1")
    if not 0 <= ratio < float("inf"):
        raise ValueError(f"async_generation_ratio={ratio}: must be a number of steps, at least 0")
    if most < groups_per_step:
        raise ValueError(f"most={most}: a step of {groups_per_step} groups tries at least as many")
    if window is not None and window < 0:
        raise ValueError(f"window={window}: must be at least 0, or None for all groups under way")
