"""The learner as the driver sees it where it is a worker: the driver has outlines of episodes, and no token of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from roll.algorithms.groups import AlgorithmWarning
from roll.data.prompts import Prompt
from roll.distributed import Cluster, WorkerCalls, WorkerGroup, WorkerSpec
from roll.pipelines.learning.learner import Learner
from roll.pipelines.learning.learner_worker import LearnerWorker, Models
from roll.trajectories.model import TrajectoryGroup
from roll.workers.loading import Text
from roll.workers.setup import Registered

if TYPE_CHECKING:
    from roll.distributed.ray_group import RayCalls


class AskedPrompts:
    """Prompts that the worker keeps; see :class:`roll.pipelines.sampling.answers_elsewhere.KeptPrompts`.

    Args:
        calls: To the worker.
    """

    def __init__(self, calls: WorkerCalls) -> None:
        self._calls = calls

    async def at(self, row: int) -> Prompt:
        """Return the prompt of a row.

        Raises:
            WorkerDiedError: If the worker is gone.
        """
        prompt: Prompt = await self._calls.one(0, "prompt", row)
        return prompt


LEARNER = "learner"
"""The role of the worker."""


class LearnerElsewhere:
    """Has a worker learn. Make it with :meth:`start`.

    Args:
        group: The worker.
        learner: What saves and restores the models, and carries over what credit assignment remembers and which rows of
            experts were taken.

    Attributes:
        parcels: Where workers put episodes for it.
        prompts: Where they find prompts.
    """

    def __init__(self, group: WorkerGroup, learner: Learner) -> None:
        # Here alone: it needs Ray, which is an extra.
        from roll.distributed.ray_parcels import RayParcels

        self.parcels = RayParcels(cast("RayCalls", group.calls()))
        self.prompts = AskedPrompts(group.calls())
        self._group = group
        self._learner = learner

    @classmethod
    async def start(
        cls,
        cluster: Cluster,
        learner: Learner,
        registered: Registered,
        prompts: Callable[[Text], Sequence[Prompt]] | None = None,
    ) -> LearnerElsewhere:
        """Start the worker.

        Args:
            cluster: Where workers live; of Ray.
            learner: A learner of this process, whose place the worker takes.
            registered: What user code registered.
            prompts: Makes the prompts of training, which the worker keeps for those that answer them.
        """
        core = learner.core
        models = Models(
            trainer=core.trainer.elsewhere(),
            critic=None if core.critic is None else core.critic.elsewhere(),
            reference=None if core.reference is None else core.reference.elsewhere(),
        )
        arguments = (
            learner.config,
            registered,
            models,
            learner.sample_mode,
            learner.compare_seats,
            prompts,
            learner.experts,
        )
        return cls(await cluster.start(LEARNER, WorkerSpec(cls=LearnerWorker, args=arguments)), learner)

    async def store(self, groups: Sequence[TrajectoryGroup], step: int) -> Path | None:
        """Have the trajectories of a step written, where that is due; return the file."""
        if not self._learner.config.stores(step):
            return None
        path: Path | None = await self._ask("store", groups, step)
        return path

    def make_batch(self, groups: Sequence[TrajectoryGroup]) -> Sequence[TrajectoryGroup]:
        """Return the groups as they are: the worker makes a batch of them."""
        return groups

    async def learn(self, batch: Sequence[TrajectoryGroup], step: int) -> dict[str, float]:
        """Have the optimiser steps of a training step taken; return metrics.

        Raises:
            RolloutError: If nothing is left to train on.
        """
        learner, progress = self._learner, self._learner.progress
        with progress.stage("log_probs"):
            await self._ask("take", batch, self.parcels.here())
            metrics: dict[str, float] = await self._ask("score")
        with progress.stage("advantages"):
            assigned, credit, words = await self._ask("assign", learner.credit.state_dict())
            learner.credit.load_state_dict(credit)
        with progress.stage("update"):
            taken = None if learner.experts is None else learner.experts.state()
            updated, taken, more = await self._ask("update", step, taken)
            if learner.experts is not None and taken is not None:
                learner.experts.restore(taken)
        for message in (*words, *more):
            warnings.warn(message, AlgorithmWarning, stacklevel=2)
        return {**metrics, **assigned, **updated}

    def keep(self, batch: Sequence[TrajectoryGroup], step: int) -> None:
        """Nothing: the worker did."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must remember beside the weights, as JSON."""
        return self._learner.state()

    async def save(self, directory: Path) -> None:
        """Write trainer and critic; see :meth:`roll.pipelines.learning.learner.Learner.save`."""
        await self._learner.save(directory)

    async def restore(self, directory: Path, state: dict[str, Any]) -> None:
        """Load what :meth:`save` wrote."""
        await self._learner.restore(directory, state)

    async def _ask(self, method: str, *arguments: Any) -> Any:
        # It waits for the models, and calls to those have a limit each.
        return await self._group.one(0, method, *arguments, timeout=math.inf)
