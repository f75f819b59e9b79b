"""The step of a run that learns from what it samples: sample, learn, publish the weights, report."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from roll.config import SamplingConfig
from roll.distributed import Cluster
from roll.distributed.weight_sync import WeightSyncError
from roll.env_managers.groups import GroupMismatchError
from roll.pipelines.experience.operating import OperatedGroups
from roll.pipelines.learning.learner import algorithm_warnings
from roll.pipelines.reporting.alarms import Alarms
from roll.pipelines.reporting.episode_spans import EpisodeTraces
from roll.pipelines.reporting.metrics import (
    generation_metrics,
    prefixed,
    rollout_metrics,
    success_in_environments,
)
from roll.pipelines.reporting.review import report_failures, store, write_evaluation
from roll.pipelines.roles.core import Core
from roll.pipelines.roles.weight_check import WeightCheckError
from roll.pipelines.run.command import review_command
from roll.pipelines.run.interrupts import to_its_end
from roll.pipelines.run.life_cycle import Run
from roll.pipelines.run.slow_arithmetic import slow_format_warnings
from roll.pipelines.run.terminal import say
from roll.pipelines.sampling.answers_elsewhere import Elsewhere
from roll.pipelines.sampling.meter import RolloutMeter
from roll.pipelines.sampling.operators import operators_on
from roll.pipelines.sampling.prompt_data import PromptData
from roll.pipelines.sampling.stream import Groups, Source, group_stream, members_per_step
from roll.runs.layout import TRAJECTORIES
from roll.schedulers.group_stream import StepGroups
from roll.schedulers.groups import RolloutError, require_some
from roll.tracking import RunSummary
from roll.trajectories.model import TrajectoryGroup
from roll.workers.loading import Text

Config = TypeVar("Config", bound=SamplingConfig)


class Learns(Protocol):
    """What learns from a rollout."""

    def make_batch(self, groups: Sequence[TrajectoryGroup]) -> Any:
        """Turn trajectories into what it learns from: a padded batch, or word of where they are."""
        ...

    async def learn(self, batch: Any, step: int) -> dict[str, float]:
        """Take the optimiser steps of training step ``step``; return metrics."""
        ...

    def keep(self, batch: Any, step: int) -> None:
        """Store what it made of a batch, if anything is to be seen of that in the review."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must remember beside the weights, as JSON."""
        ...

    async def save(self, directory: Path) -> None:
        """Write what was trained."""
        ...

    async def restore(self, directory: Path, state: dict[str, Any]) -> None:
        """Load what :meth:`save` wrote."""
        ...


class SampledRun(Run[Config]):
    """A run that learns from what it samples.

    A pipeline says what that is (``stream``), what learns from it (``learner``), and what is evaluated.
    """

    recovers_from = (*Run.recovers_from, WeightSyncError)
    fails_with = (*Run.fails_with, WeightSyncError, RolloutError, GroupMismatchError, WeightCheckError)

    core: Core
    learner: Learns
    alarms: Alarms
    _remembered: dict[str, Any] | None = None
    episode_traces: EpisodeTraces
    stream: Groups
    """What gives each step its groups."""
    meter: RolloutMeter
    """Shows and counts what is sampled."""

    @abstractmethod
    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned."""

    async def share_learning(self, cluster: Cluster, data: PromptData | None) -> Elsewhere | None:
        """Let a worker learn in place of this process, where that is asked for.

        Args:
            cluster: Where workers live.
            data: The prompts of the run, if it has some.

        Returns:
            Where workers put what they sample, and find prompts; ``None`` where that is this process.
        """
        return None

    def give_groups(self, sources: Sequence[Source]) -> None:
        """Set up what gives each step its groups, and what shows and counts them."""
        ahead = self.config.async_generation_ratio > 0 or self.config.learns_from_store
        self.meter = RolloutMeter(self.progress, members_per_step(sources), ahead)
        self.stream = self.make_stream(sources)

    def make_stream(self, sources: Sequence[Source]) -> Groups:
        """Return what gives each step its groups."""
        config: Any = self.config  # each kind that samples has the keys of grading, whatever it learns from
        stream, operators = (
            group_stream(config, sources, self.core.engines, self.meter),
            operators_on(config, "experience"),
        )
        return OperatedGroups(stream, operators) if operators else stream

    async def before_rollout(self, step: int) -> bool:
        """Wait until a step may begin; return whether anything is sampled in it."""
        return True

    def stored_file(self, step: int) -> Path | None:
        """Return the file that has exactly what a step was given, as that step's, where there is one already."""
        return None

    def pass_on(self, groups: Sequence[TrajectoryGroup], step: int, file: Path | None) -> dict[str, float] | None:
        """Give the groups to who learns from them, if this run does not, and return metrics: the step is complete.

        Args:
            groups: What was sampled.
            step: The step.
            file: Where they were stored, if they were.
        """
        return None

    def version_before(self, step: int) -> int:
        """Return the version of the weights that a step begins with."""
        return step - 1

    def sampled(self, rollout: StepGroups) -> dict[str, float]:
        """Return what to report of a rollout beside what every pipeline does."""
        return {}

    async def store_groups(self, groups: Sequence[TrajectoryGroup], step: int) -> Path | None:
        """Write the trajectories of a step, where that is due; return the file."""
        return store(self.config, groups, step, "train", self.core.token_text, self.stored_file(step))

    async def measure(self) -> dict[str, float]:
        """Return what engines and workers report of the step."""
        return {**generation_metrics([self.core.generation.metrics()]), **self.core.cluster_metrics()}

    async def step(self, step: int) -> None:
        """One step: sample, make a batch, learn from it, publish the new weights, report."""
        if not await self.before_rollout(step):
            return
        with self.progress.stage("rollout"):
            self.meter.begin()
            rollout = await self.stream.next(step, version=self.version_before(step), on_progress=self.meter.groups)
            require_some(rollout.groups)
            new = rollout.without_replayed()
            sampled = {**self.meter.end(new), **self.sampled(new)}  # now: sampling may go on meanwhile
            for note in rollout.notes:
                self.progress.warning(f"step {step}: {note}")
            report_failures(self.progress, new.groups, f"step {step}")
            file = await self.store_groups(new.groups, step)
        begun, learned = time.time(), self.pass_on(rollout.groups, step, file)
        if learned is None:
            await self.before_batch(rollout.groups)
            batch = self.learner.make_batch(rollout.groups)
            learned = await to_its_end(asyncio.create_task(self.update(batch, step)))
            self.episode_traces.learned(rollout.groups, step, begun, time.time())
            self.learner.keep(batch, step)
        described = prefixed(rollout_metrics(new.groups), "rollout")
        learns_from_scores = any(t.score is not None for group in new.groups for t in group.trajectories)
        named = {"reward/mean": described.get("rollout/reward", 0.0)} if learns_from_scores else {}
        success = success_in_environments(new.groups)
        if success is not None:
            named["env/success"] = success
        metrics = {**named, **described, **sampled, **learned, **await self.measure()}
        alarms = self.alarms.step(metrics)
        self.log.step(step, {**metrics, **self.alarms.metrics()})
        for words in alarms:
            self.log.alarm(words, step)
        self.core.weight_check.require()

    async def before_batch(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Find out what the learner must know beside the groups of a step; most runs have nothing of that kind."""

    async def update(self, batch: Any, step: int) -> dict[str, float]:
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
                self.stream.trained()
            if due:
                with self.progress.stage("weight_sync"):
                    learned |= await check.run(step)
        await self.updated(step)
        return learned

    async def updated(self, step: int) -> None:
        """Do what follows an update; most runs have nothing of that kind."""

    async def publish(self, step: int) -> dict[str, float]:
        """Give the engines the weights of ``step``, between two tokens of what is sampled ahead; returns metrics."""
        await self.core.weight_check.prepare()
        return await self.stream.update(partial(self.core.engines.publish, step))

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
        async with self.core.watched():
            try:
                yield
            finally:
                await self.stream.close()

    async def ready(self, first: int, resumed: bool) -> None:
        """Give the engines weights that they do not have, and the devices."""
        self.alarms = Alarms(self._remembered if resumed else None)
        self.episode_traces = EpisodeTraces(self.log.traces)
        self.meter.on_member = self.episode_traces.sampled
        config = self.config
        engines_have_others = (
            config.actor_infer.strategy_args.starts_with_random_weights
            or config.actor_train.strategy_args.begins_with_own_weights
        )
        if resumed or engines_have_others:
            await self.publish_first(first)
        await self.core.devices.begin_rollout()

    def state(self) -> dict[str, Any]:
        """Return what learner and alarms remember beside the weights, as JSON; a pipeline adds its own."""
        return {**self.learner.state(), "alarms": self.alarms.state()}

    async def save_state(self, folder: Path) -> None:
        """Write trainer and critic, with the policy in Hugging Face format beside them."""
        async with self.core.devices.for_models():
            await self.learner.save(folder)

    async def restore(self, folder: Path, state: dict[str, Any]) -> None:
        """Load a checkpoint into the learner and the pipeline."""
        await self.learner.restore(folder, state)
        self.resume(state)

    def resume(self, state: dict[str, Any]) -> None:
        """Restore the pipeline, and what the alarms remembered, of which earlier versions wrote nothing."""
        self._remembered = state.get("alarms")
        self.load_state(state)

    async def report_evaluation(self, groups: Sequence[TrajectoryGroup], step: int, metrics: dict[str, float]) -> None:
        """Say what of an evaluation broke, store it, write its review and log its metrics."""
        report_failures(self.progress, groups, f"evaluation after step {step}")
        with self.progress.stage("eval"):
            await self.write_evaluation(groups, step)
        self.log.evaluation(step, prefixed(metrics, "val"))

    async def write_evaluation(self, groups: Sequence[TrajectoryGroup], step: int) -> None:
        """Store an evaluation where its episodes are, and write its review."""
        write_evaluation(self.config, groups, step, self.core.token_text)

    def introduce_data(self, data: PromptData | None) -> None:
        """Say what was read, if anything was, and not again where the run goes on after a loss."""
        if data is not None and self.recoveries == 0:
            for line in data.train.report.lines():
                say(self.config, f"  data      {line}")

    def read_data(self, text: Text) -> None:
        """Read what is learned from beside what is sampled, before a model loads."""

    def how_to_review(self) -> str:
        """Return the command that opens the review, where episodes are stored."""
        return review_command(self.config) if self.config.trajectory_dump_steps else ""

    def remarks(self) -> Iterator[str]:
        """Say what the chat template cannot do, and what will be slow."""
        yield from slow_format_warnings(self.config)
        if self.core.renderer.folds_system:
            yield "The chat template takes no system message: the first message of the user says it too."

    def summary(self, steps: int) -> RunSummary:
        """Return what is shown at the end, with the places of trajectories and pages."""
        stored = self.config.output_dir / TRAJECTORIES if self.config.trajectory_dump_steps else None
        pages = self.config.render_path if self.log.evaluated >= 0 else None
        return replace(super().summary(steps), trajectories=stored, pages=pages)
