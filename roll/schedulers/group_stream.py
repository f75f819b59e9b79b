"""Groups without end, sampled ahead of training by a bounded number of steps."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from roll.schedulers.admission import Admission, Dropped, DropReason
from roll.schedulers.groups import RolloutError
from roll.schedulers.members import cancel
from roll.schedulers.prompt_search import Keep
from roll.schedulers.staleness import oldest_version, staleness_metrics
from roll.trajectories.model import TrajectoryGroup

Spec = TypeVar("Spec")
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
        metrics: ``rollout/…`` numbers: how long the step waited, what is under way, what was dropped, and
            ``rollout/staleness/…`` (:func:`roll.schedulers.staleness.staleness_metrics`).
    """

    groups: list[TrajectoryGroup]
    dropped: list[Dropped]
    is_fallback: bool
    metrics: dict[str, float]


class GroupStream(Generic[Spec]):
    """Rolls groups out ahead of training, and gives each step its groups.

    Its life::

        stream = GroupStream(source, rollouts.run_group, groups_per_step=32, ratio=1)
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
        run_group: Rolls it out. What it raises ends the stream: :meth:`next` raises it.
        groups_per_step: Groups of a step.
        ratio: Steps that sampling may run ahead, a fraction too; 0 is synchronous.
        keep: Which groups are worth training on; others are replaced. ``None`` keeps all.
        most: Groups to try for a step at most, the replaced ones among them; ``None`` for twice the groups of a step.
        window: Groups beyond those of a step among which it may pass over stragglers; ``None`` for all.
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
        run_group: Callable[[Spec], Awaitable[TrajectoryGroup]],
        *,
        groups_per_step: int,
        ratio: float = 0.0,
        keep: Keep | None = None,
        most: int | None = None,
        window: int | None = None,
        max_staleness: int | None = None,
        pause: Callback | None = None,
        resume: Callback | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        most = 2 * groups_per_step if most is None else most
        _check(groups_per_step, ratio, most, window)
        self._source = source
        self._run_group = run_group
        self._keep = keep
        self._books = Admission(groups_per_step, ratio, window, most)
        self.max_staleness = self._books.max_staleness if max_staleness is None else max_staleness
        self._pause, self._resume = pause, resume
        self._clock = clock
        self._tasks: dict[int, asyncio.Task[None]] = {}
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
        groups, dropped = self._books.take(chosen, lambda group: self._is_stale(group, version))
        if not groups:
            raise RolloutError(
                f"step {step}: every one of the {len(dropped)} groups that were tried failed. The first: "
                f"{self._first_error}"
            )
        metrics = self._metrics(groups, dropped, version, self._clock() - begun)
        return StepGroups(groups, dropped, not chosen, metrics)

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
        """Roll one group out and enter it in the books."""
        try:
            group = await self._run_group(self._source(number))
        except Exception as failure:
            # Nobody may be waiting now; the next call of next() raises it.
            self._failure = self._failure or failure
        else:
            self._judge(number, group)
            # In the same turn of the event loop, so that an engine that waits for quiet does not start in between.
            self._begin_groups()
        finally:
            self._tasks.pop(number, None)
            self._changed.set()

    def _judge(self, number: int, group: TrajectoryGroup) -> None:
        if all(member.status.is_error for member in group.trajectories):
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
