"""The step of reinforcement learning: sample, learn, publish the weights, report."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from roll.config import RLConfig
from roll.distributed.weight_sync import WeightSyncError
from roll.env_managers.groups import GroupMismatchError
from roll.pipelines.learning.learner import Learner, TrainingBatch, algorithm_warnings
from roll.pipelines.reporting.metrics import generation_metrics, prefixed, rollout_metrics
from roll.pipelines.reporting.review import all_trajectories, report_failures, shown_episodes, store
from roll.pipelines.reporting.silence import SilenceWatch
from roll.pipelines.roles.core import Core
from roll.pipelines.roles.weight_check import WeightCheckError
from roll.pipelines.run.folders import TRAJECTORIES
from roll.pipelines.run.interrupts import to_its_end
from roll.pipelines.run.life_cycle import Run
from roll.pipelines.sampling.stream import Sampling
from roll.schedulers.group_streams import JointStep
from roll.schedulers.groups import RolloutError
from roll.tracking import RunSummary
from roll.trajectories.model import TrajectoryGroup
from roll.viewer import write_pages

Config = TypeVar("Config", bound=RLConfig)


class RLPipeline(Run[Config]):
    """A run that learns from what it samples. A pipeline says what (``sampling``) and how it is evaluated."""

    recovers_from = (*Run.recovers_from, WeightSyncError)
    fails_with = (*Run.fails_with, WeightSyncError, RolloutError, GroupMismatchError, WeightCheckError)

    core: Core
    learner: Learner
    silence: SilenceWatch
    sampling: Sampling
    """What gives each step its groups."""
    reporter: ClassVar[str] = "env"
    """Who reports the metrics of trajectories (see :func:`roll.pipelines.reporting.metrics.rollout_metrics`)."""

    @abstractmethod
    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned."""

    def sampled(self, rollout: JointStep) -> dict[str, float]:
        """Return what to report of a rollout beside what every pipeline does."""
        return {}

    async def measure(self) -> dict[str, float]:
        """Return what engines and workers report of the step."""
        return {**generation_metrics([self.core.generation.metrics()]), **self.core.cluster_metrics()}

    async def step(self, step: int) -> None:
        """One step: sample, make a batch, learn from it, publish the new weights, report."""
        with self.progress.stage("rollout"):
            rollout = await self.sampling.next(step)
            sampled = {**rollout.metrics, **self.sampled(rollout)}  # now: sampling may go on during the update
            report_failures(self.progress, rollout.groups, f"step {step}")
            store(self.config, rollout.groups, step, "train")
        batch = self.learner.make_batch(rollout.groups)
        learned = await to_its_end(asyncio.create_task(self.update(batch, step)))
        described = prefixed(rollout_metrics(rollout.groups, self.reporter), "rollout")
        named = {"reward/mean": described.get("rollout/reward", 0.0)}
        if self.reporter == "env":
            named["env/success"] = described.get("rollout/success", 0.0)
        metrics = {**named, **described, **sampled, **learned, **await self.measure()}
        self.log.step(step, metrics)
        warning = self.silence.step(metrics)
        if warning is not None:
            self.progress.warning(warning)
        self.core.weight_check.require()

    async def update(self, batch: TrainingBatch, step: int) -> dict[str, float]:
        """Learn from a batch and publish the new weights; afterwards ``step`` is complete."""
        devices, check = self.core.devices, self.core.weight_check
        due = step % self.config.actor_infer.model_update_frequency == 0
        async with self.core.engines.weights_at_rest:
            measured = await devices.memory("rollout") if devices.needed else {}
            await devices.begin_update()
            measured |= await check.late()
            check.require()
            with self.changing(step):
                with algorithm_warnings(self.progress):
                    learned = measured | await self.learner.learn(batch, step)
                learned |= await devices.memory("update") if devices.needed else {}
                await devices.begin_weight_sync()
                if due:
                    with self.progress.stage("weight_sync"):
                        learned |= await self.publish(step)
                await devices.end_weight_sync()
                self.sampling.complete()
            if due:
                with self.progress.stage("weight_sync"):
                    learned |= await check.run(step)
        return learned

    async def publish(self, step: int) -> dict[str, float]:
        """Give the engines the weights of ``step``, between two tokens of what is sampled ahead; returns metrics."""
        await self.core.weight_check.prepare()
        return await self.sampling.publish(step)

    async def publish_first(self, step: int) -> None:
        """Give engines that were just started the weights of ``step``, and check that they have them."""
        check = self.core.weight_check
        # They have cached nothing, and may not answer before: load_format=dummy makes random weights.
        await self.core.engines.publish(step)
        await check.run(step)
        await check.late()
        check.require()

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Make engines that die again; in the end, stop what is being sampled."""
        async with self.core.engines.watched():
            try:
                yield
            finally:
                await self.sampling.close()

    async def ready(self, first: int, resumed: bool) -> None:
        """Give the engines weights that they do not have, and the devices."""
        self.silence = SilenceWatch()
        if resumed or self.config.actor_infer.strategy_args.starts_with_random_weights:
            await self.publish_first(first)
        await self.core.devices.begin_rollout()

    def state(self) -> dict[str, Any]:
        """Return what the learner remembers beside the weights, as JSON; a pipeline adds its own."""
        return self.learner.state()

    async def save_state(self, folder: Path) -> None:
        """Write trainer and critic, with the policy in Hugging Face format beside them."""
        async with self.core.devices.for_models():
            await self.learner.save(folder)

    async def restore(self, folder: Path, state: dict[str, Any]) -> None:
        """Load a checkpoint into the learner and the pipeline."""
        await self.learner.restore(folder, state)
        self.load_state(state)

    def report_evaluation(self, groups: Sequence[TrajectoryGroup], step: int, metrics: dict[str, float]) -> None:
        """Store an evaluation, write its review pages and log its metrics."""
        report_failures(self.progress, groups, f"evaluation after step {step}")
        with self.progress.stage("eval"):
            store(self.config, groups, step, "val")
            write_pages(
                shown_episodes(groups),
                self.config.render_path,
                title=self.config.exp_name,
                step=step,
                token_text=self.core.token_text,
                of=list(all_trajectories(groups)),
            )
        self.log.evaluation(step, prefixed(metrics, "val"))

    def headline(self) -> str:
        """Return policy, algorithm and batch in a few words."""
        policy = Path(self.config.model_path("actor_train")).name
        return f"{policy}, {self.config.adv_estimator}, {self.config.plan().train.short()}"

    def remarks(self) -> Iterator[str]:
        """Say what the chat template cannot do."""
        if self.core.renderer.folds_system:
            yield "The chat template takes no system message: the first message of the user says it too."

    def summary(self, steps: int) -> RunSummary:
        """Return what is shown at the end, with the places of trajectories and pages."""
        stored = self.config.output_dir / TRAJECTORIES if self.config.trajectory_dump_steps else None
        pages = self.config.render_path if self.log.evaluated >= 0 else None
        return replace(super().summary(steps), trajectories=stored, pages=pages)
