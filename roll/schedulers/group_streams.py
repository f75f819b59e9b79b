"""Several streams of groups that make up a step together: one per source, so that each keeps its share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from roll.schedulers.group_stream import Callback, GroupStream, OnProgress, StepGroups, publish_paused
from roll.schedulers.members import cancel
from roll.schedulers.staleness import staleness_metrics


@dataclass(frozen=True, slots=True)
class JointStep(StepGroups):
    """What a step trains on.

    Attributes:
        parts: What came of each stream, by its name.
    """

    parts: dict[str, StepGroups] = field(default_factory=dict)


class GroupStreams:
    """Has the interface of a :class:`~roll.schedulers.group_stream.GroupStream`; see there for its life.

    A group that is dropped is replaced by one of the same stream, so the shares of a step stay exact. Each stream
    admits at most ``floor((1 + ratio) · groups_per_step)`` of its own groups; together they stay within the bound of
    the whole.

    Args:
        streams: By name, made without ``pause`` and ``resume``.
        pause: Called before new weights are published.
        resume: Called after.
    """

    def __init__(
        self, streams: Mapping[str, GroupStream[Any]], pause: Callback | None = None, resume: Callback | None = None
    ) -> None:
        self._streams = dict(streams)
        self._pause, self._resume = pause, resume

    @property
    def counts(self) -> dict[str, int]:
        """Groups so far: ``admitted``, ``trained``, and dropped by reason."""
        return dict(sum((Counter(stream.counts) for stream in self._streams.values()), Counter()))

    @property
    def live(self) -> int:
        """Groups admitted and neither trained nor dropped."""
        return sum(stream.live for stream in self._streams.values())

    @property
    def capacity(self) -> int:
        """Most groups that are admitted and not yet trained."""
        return sum(stream.capacity for stream in self._streams.values())

    @property
    def groups_per_step(self) -> int:
        """Groups that a step trains."""
        return sum(stream.groups_per_step for stream in self._streams.values())

    @property
    def in_training(self) -> bool:
        """Whether a step has groups that do not count as trained yet."""
        return any(stream.in_training for stream in self._streams.values())

    def position(self, name: str) -> int:
        """Return the number of the first group of a stream that has never begun."""
        return self._streams[name].position

    async def next(self, step: int, version: int, on_progress: OnProgress | None = None) -> JointStep:
        """Wait for the groups of a step; those of the first stream come first."""
        finished: dict[str, tuple[int, int]] = {}

        def show(name: str, done: int, wanted: int) -> None:
            finished[name] = (done, wanted)
            if on_progress is not None and len(finished) == len(self._streams):
                on_progress(sum(done for done, _ in finished.values()), sum(wanted for _, wanted in finished.values()))

        waiting = [
            asyncio.ensure_future(stream.next(step, version, partial(show, name)))
            for name, stream in self._streams.items()
        ]
        try:
            parts = list(await asyncio.gather(*waiting))
        finally:
            await cancel(waiting)
        if not all(part.is_fallback for part in parts):
            # Unfiltered groups are for a step that has nothing else.
            parts = [stream.without_fallback(part) for stream, part in zip(self._streams.values(), parts, strict=True)]
        groups = [group for part in parts for group in part.groups]
        metrics: Counter[str] = Counter()
        for part in parts:
            metrics.update(part.metrics)
        stale = {f"rollout/staleness/{name}": value for name, value in staleness_metrics(groups, version).items()}
        waited = {"rollout/wait_seconds": max(part.metrics["rollout/wait_seconds"] for part in parts)}
        dropped = [each for part in parts for each in part.dropped]
        return JointStep(
            groups=groups,
            dropped=dropped,
            is_fallback=any(part.is_fallback for part in parts),
            metrics={**metrics, **stale, **waited},
            aborted=sum(part.aborted for part in parts),
            notes=self._notes(parts),
            parts=dict(zip(self._streams, parts, strict=True)),
        )

    def trained(self) -> None:
        """Take note that the step's groups are trained and engines have the new weights."""
        for stream in self._streams.values():
            stream.trained()

    async def update(self, publish: Callable[[], Awaitable[None]]) -> None:
        """Publish new weights while no group begins, then count the step as trained."""
        with ExitStack() as held:
            for stream in self._streams.values():
                held.enter_context(stream.held())
            await publish_paused(publish, self._pause, self._resume)
        self.trained()

    def state_dict(self) -> dict[str, Any]:
        """Return what to remember of each stream, as JSON."""
        return {name: stream.state_dict() for name, stream in self._streams.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another run stopped; a stream that was not there then begins at its beginning."""
        for name, stream in self._streams.items():
            if name in state:
                stream.load_state_dict(state[name])

    def begin_at(self, position: int) -> None:
        """Begin behind so many groups of the whole run.

        With several streams they begin with whole steps: some groups may be left out, none comes again.
        """
        if len(self._streams) == 1:
            next(iter(self._streams.values())).begin_at(position)
            return
        steps = -(-position // self.groups_per_step)
        for stream in self._streams.values():
            stream.begin_at(steps * stream.groups_per_step)

    async def close(self) -> None:
        """Cancel all that is under way."""
        for stream in self._streams.values():
            await stream.close()

    def _notes(self, parts: Sequence[StepGroups]) -> list[str]:
        named = len(self._streams) > 1
        return [
            f"{name}: {note}" if named else note
            for name, part in zip(self._streams, parts, strict=True)
            for note in part.notes
        ]
