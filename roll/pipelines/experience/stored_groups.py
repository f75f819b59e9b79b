"""Groups that lie in a store: what gives a step its groups where nothing is sampled."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from roll.experience.base import ExperienceStore, KeepsFiles, Lease, StoreCounts
from roll.pipelines.experience.people import WaitingForPeople, review_metrics
from roll.schedulers.group_stream import OnProgress, StepGroups
from roll.schedulers.groups import RolloutError
from roll.schedulers.staleness import staleness_metrics
from roll.trajectories.store import read_origin

Published = TypeVar("Published")

_LOOK_EVERY: Final = 0.2
"""Seconds between two looks at whether a store has more groups."""

_WHY_LOST: Final = (
    "the machine, or the process, in whose memory they lay has ended. The step is given others. With experience.path "
    "the store keeps groups in a folder, and outlives this"
)


class StoredGroups:
    """Gives each step its groups from a store, and waits until they are there.

    The same step is given the same groups again: a run that was killed goes on as if nothing had happened.

    Args:
        store: Where they are.
        per_step: Groups of a step.
        domains: The domain of each tag of prompts, for groups that do not know theirs.
        people: Says for whom it waits where groups wait for review.
        while_waiting: Called again and again while groups are waited for.
    """

    def __init__(
        self,
        store: ExperienceStore,
        per_step: int,
        domains: Mapping[str, str],
        people: WaitingForPeople,
        while_waiting: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._people = people
        self._while_waiting = while_waiting
        self._store = store
        self._per_step = per_step
        self._domains = domains
        self._leased: Lease | None = None

    async def next(self, step: int, version: int, on_progress: OnProgress | None = None) -> StepGroups:
        """Wait for the groups of a step.

        Raises:
            RolloutError: Nothing more will come, and too little is left; or nobody decides about a group for too long.
        """
        begun, before = time.perf_counter(), self._store.counts()
        while True:
            # Both are asked before the lease: afterwards, the last groups, or decisions, may have come in between.
            was_finished, counts = self._store.finished, self._store.counts()
            lease = self._store.lease(self._per_step, step)
            if lease is not None:
                break
            if counts.waiting:
                there = f"step {step}: {counts.available} of {self._per_step} groups can be learned from"
                self._people.look(counts, there)
            elif was_finished:
                raise RolloutError(f"step {step}: {self._too_few(self._store.counts())}")
            if on_progress is not None:
                on_progress(min(counts.available, self._per_step), self._per_step)
            if self._while_waiting is not None:
                await self._while_waiting()
            await asyncio.sleep(_LOOK_EVERY)
        self._leased = lease
        counts = self._store.counts()
        lost = counts.lost - before.lost
        groups = [replace(each, domain=each.domain or self._domains.get(each.tag, "")) for each in lease.groups]
        tags = Counter(group.tag for group in groups)
        stale = staleness_metrics(groups, version)
        metrics = {
            "rollout/wait_seconds": time.perf_counter() - begun,
            "rollout/groups_ready": float(counts.available),
            "rollout/groups_stale": float(counts.dropped - before.dropped),
            **({"rollout/groups_lost": float(lost)} if lost else {}),
            **review_metrics(counts),
            **{f"rollout/staleness/{name}": value for name, value in stale.items()},
            **({f"rollout/groups/{tag}": float(count) for tag, count in tags.items()} if len(tags) > 1 else {}),
        }
        notes = [f"{lost} groups of the store are lost: {_WHY_LOST}"] if lost else []
        return StepGroups(groups, dropped=[], is_fallback=False, metrics=metrics, notes=notes)

    def _too_few(self, counts: StoreCounts) -> str:
        rejected = f", {counts.rejected} were rejected" if counts.rejected else ""
        lost = f", {counts.lost} are lost" if counts.lost else ""
        return (
            f"the store has {counts.available} of {self._per_step} groups left ({counts.fresh} fresh{rejected}{lost}), "
            "and what filled it is finished. Take fewer steps (max_steps), use each group more often "
            "(experience.uses), or let mode: explore sample more"
        )

    def file(self, step: int) -> Path | None:
        """Return the file that has exactly what a step was given last, as that step's; ``None`` where there is none."""
        if self._leased is None or not isinstance(self._store, KeepsFiles):
            return None
        file = self._store.file_of(self._leased)
        return file if file is not None and read_origin(file).step == step else None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever put into the store."""
        return not self._store.counts().groups

    def position(self, name: str) -> int:
        """Return 0: what others sample is not known here."""
        return 0

    def trained(self) -> None:
        """Nothing is under way."""

    async def update(self, publish: Callable[[], Awaitable[Published]]) -> Published:
        """Publish new weights."""
        return await publish()

    def state_dict(self) -> dict[str, Any]:
        """Return the step whose groups were trained last."""
        return {"leased": 0 if self._leased is None else self._leased.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on behind a checkpoint: steps after it are given the groups that they had before, if they had some."""

    def begin_at(self, position: int) -> None:
        """Begin: what this reader was given before does not count.

        Raises:
            ValueError: The position is not the beginning.
        """
        if position:
            raise ValueError(f"position={position}: a run that learns from a store begins at its beginning")
        self._store.rewind(0)

    def saved(self) -> None:
        """A checkpoint has the steps so far."""
        if self._leased is not None:
            self._store.commit(self._leased.step)

    async def close(self) -> None:
        """Close the store."""
        self._store.close()
