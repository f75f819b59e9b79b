"""``mode: train``: it samples nothing, and learns from a store that others fill."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from roll.pipelines.experience.exchanging import OfferedVersions, offered_versions, without_disk
from roll.pipelines.experience.people import shown_place
from roll.pipelines.experience.stored_groups import StoredGroups
from roll.pipelines.experience.syncing import SyncRequests
from roll.pipelines.modes.mode import Mode
from roll.pipelines.modes.store import opened_store, people_of
from roll.pipelines.run.interrupts import to_its_end
from roll.pipelines.sampling.stream import Groups


class Train(Mode):
    """Learns from a store, and gives those that fill it newer weights: by checkpoints, or without a disk between."""

    _stored: StoredGroups
    _requests: SyncRequests | None = None
    _offers: OfferedVersions | None = None

    def groups(self, sampled: Callable[[], Groups], per_step: int) -> Groups:
        """Return what gives each step groups of the store."""
        config, keys = self.config, self.config.experience
        assert keys is not None, "such a mode without a store is refused"
        store, people = opened_store(self.run), people_of(config, self.run.progress)
        if keys.sync is not None and without_disk(keys):
            self._offers = offered_versions(keys, config)
        elif keys.sync is not None:
            self._requests = SyncRequests(config.output_dir)
        count = config.groups_per_lease
        self._stored = StoredGroups(store, count, self.domains, people, self._answer_requests)
        return self._stored

    def begin(self) -> None:
        """Begin with the store."""
        self._stored.begin_at(0)

    async def ready(self, first: int) -> None:
        """Offer the weights that it goes on with."""
        if self._offers is not None:
            await self._offers.begin(self.run.core, first)

    async def updated(self, step: int) -> None:
        """Offer the new weights."""
        if self._offers is not None:
            with self.run.progress.stage("weight_sync"):
                await self._offers.learned(self.run.core, step)

    def stored_file(self, step: int) -> Path | None:
        """Return the file of the store that has exactly what a step was given."""
        return self._stored.file(step)

    def saves(self, step: int, due: bool) -> bool:
        """Whether a checkpoint is due, by its own pace or that of its explorers, or one of them asks for it."""
        sync = None if self._requests is None or self.config.experience is None else self.config.experience.sync
        by_pace = sync is not None and sync.is_due(step)
        return due or by_pace or bool(self._asked())

    async def save(self, write: Callable[[], Awaitable[None]]) -> None:
        """Write a checkpoint, and tell explorers that asked for one."""
        asked = self._asked()
        await write()
        self._answer(asked)

    async def _answer_requests(self) -> None:
        """While nothing is there to learn from, give explorers that ask for them the weights of now."""
        if self._offers is not None:
            await to_its_end(asyncio.create_task(self._offers.waiting(self.run.core)))
            return
        asked = self._asked()
        if asked and self.run.unsaved is not None:
            await to_its_end(asyncio.create_task(self.run.save(self.run.unsaved)))
        else:
            self._answer(asked)

    def _asked(self) -> list[Path]:
        return [] if self._requests is None else self._requests.pending()

    def _answer(self, asked: list[Path]) -> None:
        if self._requests is not None:
            self._requests.answer(asked)

    async def ended(self) -> None:
        """Say that nothing more will come."""
        if self._offers is not None:
            await self._offers.finish(self.run.core)

    def saved(self) -> None:
        """Tell the store."""
        self._stored.saved()

    def remarks(self) -> Iterator[str]:
        """Say that it waits, where it does."""
        if self._stored.is_empty and self.config.experience is not None:
            place = shown_place(self.config.experience)
            yield f"  store     {place} is empty: this run waits for one with mode=explore"

    def headline(self, policy: str, step: str) -> str:
        """Return how it learns."""
        return f"{super().headline(policy, step)} from a store"
