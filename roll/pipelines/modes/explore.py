"""``mode: explore``: it samples into a store, from which others learn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from roll.pipelines.experience.exploring import Explorer
from roll.pipelines.modes.mode import Mode
from roll.pipelines.modes.store import opened_store, people_of
from roll.pipelines.modes.weights import take_weights
from roll.pipelines.run.interrupts import to_its_end
from roll.pipelines.sampling.stream import Groups
from roll.trajectories.model import TrajectoryGroup


class Explore(Mode):
    """Fills a store, with the newest weights of who learns from it."""

    learns = False
    _explorer: Explorer

    def groups(self, sampled: Callable[[], Groups], per_step: int) -> Groups:
        """Return what samples."""
        keys = self.config.experience
        assert keys is not None, "such a mode without a store is refused"
        store = opened_store(self.run)
        people = people_of(self.config, self.run.progress)
        timeout = self.config.weight_sync.timeout
        self._explorer = Explorer(store, keys, self.config.groups_per_lease, people, timeout)
        return sampled()

    def version_before(self, step: int) -> int:
        """Return the version of the weights that it follows."""
        return self.run.core.engines.version

    async def before_rollout(self, step: int) -> bool:
        """Wait until the store has room, and take the newest weights."""
        with self.run.progress.stage("wait"):
            await self._explorer.wait_for_room()
        while True:
            with self.run.progress.stage("wait"):
                found = await self._explorer.weights_for(step, self.run.core.engines.version)
            if found is None:
                return True
            taken = await to_its_end(asyncio.create_task(take_weights(self.run, *found)))
            if taken or isinstance(found[1], Path):
                return True  # of a checkpoint that was removed meanwhile there is a newer one, for the next step

    def pass_on(self, groups: Sequence[TrajectoryGroup], step: int, file: Path | None) -> dict[str, float]:
        """Put the groups into the store; the step is complete then."""
        version = self.run.core.engines.version
        with self.run.changing(step):
            kept = self._explorer.keep(groups, version, file)
            self.run.stream.trained()
        if not kept["experience/new_groups"]:
            self.run.progress.warning(f"step {step}: the store has these groups already; another seed samples others")
        return {**kept, "experience/version": float(version)}

    async def ended(self) -> None:
        """Say that nothing more will come, where others learn from it."""
        self._explorer.finish()

    def close(self) -> None:
        """Close the store."""
        self._explorer.close()

    def headline(self, policy: str, step: str) -> str:
        """Return what it samples."""
        return f"{policy}, explores, {step}"
