"""``mode: bench``: it evaluates checkpoints of another run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from roll.pipelines.experience.following import FollowedRun, ListedCheckpoints
from roll.pipelines.modes.mode import Mode
from roll.pipelines.modes.weights import take_weights
from roll.pipelines.run.interrupts import to_its_end
from roll.pipelines.sampling.stream import Groups


class Bench(Mode):
    """Waits for each checkpoint in turn, and evaluates those that there are."""

    learns = False
    _followed: FollowedRun | ListedCheckpoints
    _found = True

    def groups(self, sampled: Callable[[], Groups], per_step: int) -> Groups:
        """Return what samples, which nothing asks for groups."""
        keys = self.config.experience
        assert keys is not None and (keys.follow or keys.checkpoints), "bench without them is refused"
        self._followed = FollowedRun(keys.follow) if keys.follow else ListedCheckpoints(keys.checkpoints)
        return sampled()

    async def before_rollout(self, step: int) -> bool:
        """Wait for the checkpoint of a step and take it, if there is one; nothing is sampled."""
        with self.run.progress.stage("wait"):
            folder = await self._followed.checkpoint(step)
        self._found = folder is not None
        with self.run.changing(step):
            if folder is not None:
                self._found = await to_its_end(asyncio.create_task(take_weights(self.run, step, folder)))
        return False

    def evaluates(self, step: int, due: bool) -> bool:
        """Whether there is a checkpoint of the step."""
        return self._found if step else due

    def saves(self, step: int, due: bool) -> bool:
        """Whether the step evaluated something."""
        return self._found

    def headline(self, policy: str, step: str) -> str:
        """Return what it does."""
        return f"{policy}, evaluates the checkpoints of another run"
