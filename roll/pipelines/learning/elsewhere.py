"""The learner as the driver sees it where it is a worker: the driver has outlines of episodes, and no token of them."""

from __future__ import annotations

import asyncio
import math
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from roll.algorithms.groups import AlgorithmWarning
from roll.data.prompts import Prompt
from roll.distributed import Cluster, WorkerCalls, WorkerGroup, WorkerSpec
from roll.experience.base import ExperienceStore
from roll.pipelines.learning.expert_rows import Ungraded
from roll.pipelines.learning.learner import Learner
from roll.pipelines.learning.learner_worker import LearnerWorker, Models
from roll.pipelines.learning.store_elsewhere import FilesElsewhere, StoreElsewhere
from roll.trajectories.model import TrajectoryGroup
from roll.trajectories.store import Phase
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

    async def at(self, row: int, phase: Phase) -> Prompt:
        """Return the prompt of a row of those for training, or for evaluations.

        Raises:
            WorkerDiedError: If the worker is gone.
        """
        prompt: Prompt = await self._calls.one(0, "prompt", row, phase)
        return prompt

    async def spoken_by_expert(self, number: int) -> list[int]:
        """Return the tokens of an answer of an expert.

        Raises:
            WorkerDiedError: If the worker is gone.
        """
        spoken: list[int] = await self._calls.one(0, "spoken_by_expert", number)
        return spoken


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

        self._calls = cast("RayCalls", group.calls())
        self.parcels = RayParcels(self._calls)
        self.prompts = AskedPrompts(group.calls())
        self._group = group
        self._learner = learner

    @classmethod
    async def start(
        cls,
        cluster: Cluster,
        learner: Learner,
        registered: Registered,
        prompts: Mapping[Phase, Callable[[Text], Sequence[Prompt]]] | None = None,
    ) -> LearnerElsewhere:
        """Start the worker.

        Args:
            cluster: Where workers live; of Ray.
            learner: A learner of this process, whose place the worker takes.
            registered: What user code registered.
            prompts: Make the prompts of the run, which the worker keeps for those that answer them.
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
            prompts or {},
            learner.experts,
            learner.answers,
        )
        return cls(await cluster.start(LEARNER, WorkerSpec(cls=LearnerWorker, args=arguments)), learner)

    def open_store(self, opens: Callable[[], ExperienceStore]) -> ExperienceStore:
        """Have an experience store opened by the worker, and return it.

        Args:
            opens: Opens it; called there.

        Raises:
            ConfigError: What is there is not what the run needs.
            StoreError: It cannot be used.
        """
        keeps_files = self._calls.wait(0, "open_store", opens, self.parcels.at)
        return (FilesElsewhere if keeps_files else StoreElsewhere)(partial(self._calls.wait, 0, "ask_store"))

    async def forget(self) -> None:
        """Let the worker drop the contents of episodes that nobody here has any more, where nothing learns."""
        await self._ask("forget", self.parcels.here())

    async def store(self, groups: Sequence[TrajectoryGroup], step: int, there: Path | None = None) -> Path | None:
        """Have the trajectories of a step written, where that is due; return the file.

        Args:
            groups: The groups.
            step: The step.
            there: A file that has exactly these groups as those of this step already.
        """
        if not self._learner.config.stores(step):
            return None
        path: Path | None = await self._ask("store", groups, step, there)
        return path

    async def grade_answers(
        self, groups: Sequence[TrajectoryGroup], grades: Callable[[Ungraded], Awaitable[float | None]]
    ) -> None:
        """Find out what answers of experts earned that join these groups, each once in a run.

        Args:
            groups: The groups.
            grades: Says what an answer earns; ``None`` where no verifier could say.
        """
        unknown: list[Ungraded] = await self._ask("ungraded", groups)
        scores = await asyncio.gather(*map(grades, unknown))
        await self._ask("note", {each.number: score for each, score in zip(unknown, scores, strict=True)})

    async def write_evaluation(self, groups: Sequence[TrajectoryGroup], step: int) -> None:
        """Have the trajectories of an evaluation written, and its review."""
        await self._ask("write_evaluation", groups, step)

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
