"""What a run that explores does with its groups, and where its weights come from."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from roll.config.experience import ExperienceConfig
from roll.experience.base import ExperienceStore, KeepsFiles
from roll.pipelines.experience.exchanging import ExchangedVersions, exchange_of, weights_elsewhere, without_disk
from roll.pipelines.experience.people import WaitingForPeople, review_metrics
from roll.pipelines.experience.syncing import CheckpointVersions, Synchronizer
from roll.runs.layout import CHECKPOINTS, folder_of
from roll.trajectories.model import TrajectoryGroup, group_of_member

if TYPE_CHECKING:
    from roll.workers.weights_elsewhere import WeightsElsewhere

_LOOK_EVERY: Final = 0.2
"""Seconds between two looks at whether a store has room."""


def whole(groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """Return the groups of which a member did not break."""
    return [group for group in groups if any(not member.status.is_error for member in group.trajectories)]


class Explorer:
    """Fills a store, not faster than it is learned from, and knows the newest weights of who learns.

    Args:
        store: What to fill.
        config: Its keys.
        per_step: Groups of a step.
        people: Says for whom it waits where groups wait for review.
        sync_timeout: Seconds that the run that learns may take to send weights.
    """

    def __init__(
        self,
        store: ExperienceStore,
        config: ExperienceConfig,
        per_step: int,
        people: WaitingForPeople,
        sync_timeout: float,
    ) -> None:
        self._people = people
        self._store = store
        self._config = config
        self._most = None if config.ahead is None else config.ahead * per_step
        self._synchronizer: Synchronizer | None = None
        self._elsewhere: WeightsElsewhere | None = None
        if without_disk(config):
            exchange = exchange_of(config)
            self._elsewhere = weights_elsewhere(config, exchange, sync_timeout)
            self._synchronizer = Synchronizer(config.sync, ExchangedVersions(exchange, config.writer))
        elif config.follow is not None:
            self._synchronizer = Synchronizer(config.sync, CheckpointVersions(config.follow, config.writer))

    def keep(self, groups: Sequence[TrajectoryGroup], version: int, file: Path | None = None) -> dict[str, float]:
        """Put the groups of a step into the store; returns how many were new, and how many have not been learned from.

        Groups that broke are left out.

        Args:
            groups: The groups.
            version: The weights that sampled them.
            file: The file of trajectories that has all of them, if there is one: the store keeps that, where it can.
        """
        new = self._linked(groups, version, file)
        if new is None:
            new = self._store.append([self._named(group) for group in whole(groups)], version)
        counts = self._store.counts()
        kept = {"experience/new_groups": float(new), "experience/available": float(counts.fresh)}
        return kept | review_metrics(counts)

    def _linked(self, groups: Sequence[TrajectoryGroup], version: int, file: Path | None) -> int | None:
        """Keep the file of some groups; ``None`` where the store keeps none, or the disk knows no links."""
        if file is None or not isinstance(self._store, KeepsFiles):
            return None
        kept = {group.group_id for group in whole(groups)}
        prefix = "" if self._config.writer is None else f"{self._config.writer}/"
        try:
            return self._store.append_file(file, groups, version, kept, prefix)
        except OSError:
            return None

    def _named(self, group: TrajectoryGroup) -> TrajectoryGroup:
        """Return a group under the name that it has in the store."""
        if self._config.writer is None:
            return group
        name = f"{self._config.writer}/{group.group_id}"
        members = [copy(member) for member in group.trajectories]
        for member in members:
            member.group_id = group_of_member(member.group_id, name)
        return replace(group, group_id=name, trajectories=members)

    async def wait_for_room(self) -> None:
        """Wait until less than the most lies in the store; what waits for people lies there too.

        Raises:
            RolloutError: Only people could make room, and nobody decides about a group for too long.
        """
        while self._most is not None:
            counts = self._store.counts()
            if counts.fresh + counts.waiting < self._most:
                return
            if counts.fresh < self._most:
                self._people.look(counts, f"{counts.fresh + counts.waiting} groups lie in the store, which is enough")
            await asyncio.sleep(_LOOK_EVERY)

    async def weights_for(self, step: int, version: int) -> tuple[int, Path | WeightsElsewhere] | None:
        """Return the version that a step is to sample with, and its weights; ``None`` to go on with ``version``.

        Raises:
            RolloutError: It does not come in time.
        """
        found = None if self._synchronizer is None else await self._synchronizer.before(step, version)
        if found is None:
            return None
        if self._elsewhere is not None:
            return found, self._elsewhere
        assert self._config.follow is not None, "nothing else is followed"
        return found, folder_of(self._config.follow / CHECKPOINTS, found)

    def finish(self) -> None:
        """Nothing more will come."""
        self._store.finish()

    def close(self) -> None:
        """Close the store."""
        self._store.close()
