"""The life cycle every pipeline shares: sample, learn, publish the weights, report; evaluate and save when due."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from roll.config import PipelineConfig, RunError, plan
from roll.config.process import settle_collector
from roll.distributed import Cluster, WorkerError, open_cluster
from roll.distributed.weight_sync import WeightSyncError
from roll.env_managers.groups import GroupMismatchError
from roll.pipelines.core import Core
from roll.pipelines.learner import Learner, Lesson
from roll.pipelines.metrics import generation_metrics, prefixed, rollout_metrics
from roll.pipelines.roles.models import to_its_end
from roll.pipelines.roles.weight_check import WeightCheckError
from roll.pipelines.run.checkpoint import folder_of, new_checkpoint
from roll.pipelines.run.command import resume_command, shown
from roll.pipelines.run.folders import folders, make_room, own_folders
from roll.pipelines.run.log import RunLog, checkpoint_state, is_due, resume, summarize
from roll.pipelines.run.process import run_to_end, settle_process
from roll.pipelines.run.record import RunRecord
from roll.pipelines.run.storage import StorageError, refusals_end_the_run
from roll.pipelines.run.terminal import (
    algorithm_warnings,
    headline,
    introduce,
    one_line,
    quiet_transformers,
    say,
    say_differences,
)
from roll.pipelines.sampling.stream import Ahead
from roll.schedulers.groups import RolloutError
from roll.strategies.generation.engine_options import starts_with_random_weights
from roll.tracking import Progress, RunSummary, make_progress
from roll.trajectories.model import Trajectory, TrajectoryGroup
from roll.trajectories.store import Phase, trajectory_path, write_trajectories
from roll.viewer import write_pages

PAGES_PER_EVALUATION = 16

TIMELINE = "timeline.json"

Config = TypeVar("Config", bound=PipelineConfig)


@dataclass(slots=True)
class Rollout:
    """What was sampled for one training step.

    Attributes:
        groups: The trajectories, in an order that does not depend on who finished first.
        metrics: Numbers to report.
    """

    groups: list[TrajectoryGroup]
    metrics: dict[str, float] = field(default_factory=dict)


class Pipeline(ABC, Generic[Config]):
    """One run. A pipeline says how trajectories come about (:meth:`rollout`, :meth:`evaluate`); the rest is here.

    Args:
        config: A checked configuration.
        progress: Where to show what happens.
    """

    core: Core
    learner: Learner
    ahead: Ahead | None = None
    """What samples while the policy learns; ``None`` where the two take turns."""
    reporter: ClassVar[str] = "env"
    """Who reports the metrics of trajectories (see :func:`roll.pipelines.metrics.rollout_metrics`)."""

    def __init__(self, config: Config, progress: Progress) -> None:
        self.config = config
        self.progress = progress
        self.plan = plan(config)
        self.saved: Path | None = None
        # The step whose weights the trainer holds, while no checkpoint has them; none while an update is under way.
        self.unsaved: int | None = None
        # Recoveries since the last checkpoint, and what the next sitting of the run continues from.
        self.recoveries = 0
        self.resume_from: bool | str = config.resume_from_checkpoint
        self.begun = False
        self.not_saved: str | None = None

    @abstractmethod
    async def assemble(self, cluster: Cluster) -> None:
        """Start the parts: ``core`` and ``learner``, and what the pipeline samples with."""

    @abstractmethod
    async def rollout(self, step: int) -> Rollout:
        """Sample the trajectories of training step ``step``."""

    @abstractmethod
    async def evaluate(self, step: int) -> None:
        """Evaluate the policy after ``step`` training steps; ends with :meth:`report_evaluation`."""

    async def measure(self) -> dict[str, float]:
        """Return what engines and workers report of the step."""
        return {**generation_metrics([self.core.generation.metrics()]), **self.core.cluster_metrics()}

    async def publish(self, step: int) -> dict[str, float]:
        """Give the engines the weights of ``step``, between two tokens of what is sampled ahead; returns metrics."""
        await self.core.weight_check.prepare()
        return await (self.core.engines if self.ahead is None else self.ahead).publish(step)

    async def stop_sampling(self) -> None:
        """Stop what is being sampled ahead."""
        if self.ahead is not None:
            await self.ahead.stream.close()

    def state(self) -> dict[str, Any]:
        """Return what of the pipeline itself a checkpoint must remember, as JSON."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned."""

    def complete(self, step: int) -> None:
        """Take note that ``step`` is trained: what was sampled for it is used up."""

    async def run(self) -> RunSummary:
        """Train for ``max_steps`` steps; after the loss of a worker that it needs, go on from the newest checkpoint."""
        while True:
            try:
                async with open_cluster(self.config) as cluster:
                    return await self._sit(cluster)
            except (WorkerError, WeightSyncError) as error:
                if self.recoveries >= self.config.max_recoveries:
                    raise
                self.recoveries += 1
                self.resume_from = self._newest()
                where = f"from {shown(self.saved)}" if self.saved is not None else "from the start"
                self.progress.warning(f"{one_line(error)} The run goes on {where}.")

    def _newest(self) -> bool | str:
        """Return the checkpoint to recover from: the newest whole one of this run, or the one that it began with."""
        if not self.begun:
            return self.resume_from
        if self.saved is None:
            return False
        return True if self.saved.parent == self.config.checkpoint_path else str(self.saved)

    async def _sit(self, cluster: Cluster) -> RunSummary:
        """Run from the checkpoint to continue from, if any, to the end, with what is due in between."""
        config = self.config
        resumed = resume(config, self.resume_from)
        self.saved, state = (None, None) if resumed is None else (resumed.path, resumed.state)
        first = 0 if state is None else int(state["step"])
        self.unsaved = None
        await self.assemble(cluster)
        self.begin(state, first)
        for note in () if resumed is None else resumed.notes:
            self.progress.warning(note)
        restore_collector = settle_collector()
        try:
            async with self.core.engines.watched():
                try:
                    await self._steps(state, first)
                finally:
                    await self.stop_sampling()
            summary = summarize(config, self.log, max(first, config.max_steps), self.saved)
            self.progress.finish(summary)
            return summary
        except (asyncio.CancelledError, Exception) as error:
            # Ctrl-C arrives while responses are sampled: updates run to their end, so a completed step can be saved.
            if self.unsaved is not None:
                await self._save_at_the_end(self.unsaved, error)
            raise
        finally:
            restore_collector()
            self.log.trackers.close()
            if config.enable_ray_timeline:
                cluster.write_timeline(config.output_dir / TIMELINE)

    async def _steps(self, state: dict[str, Any] | None, first: int) -> None:
        """Train from the state after step ``first`` to the last step."""
        config = self.config
        if state is not None and self.saved is not None:
            await self.restore(self.saved, first, state)
        elif starts_with_random_weights(config.actor_infer.strategy_args.strategy_config):
            await self.publish_first(first)
        await self.core.turns.begin_rollout()
        if is_due(first, config.eval_steps, config.max_steps) and self.log.evaluated < first:
            await self.evaluate(first)
        for step in range(first + 1, config.max_steps + 1):
            await self.train(step)
            if is_due(step, config.eval_steps, config.max_steps):
                await self.evaluate(step)
            if is_due(step, config.save_steps, config.max_steps) or step == config.max_steps:
                await to_its_end(partial(self.save, step))

    def begin(self, state: dict[str, Any] | None, first: int) -> None:
        """Open the logs and the display; what an earlier run left in the folders is moved aside."""
        config = self.config
        if not self.begun:
            self.begun = True
            if config.resume_from_checkpoint and state is None:
                say(config, f"No checkpoint in {config.checkpoint_path} to resume from: starting anew.")
            if 0 < config.max_steps <= first:
                say(config, f"{self.saved} is complete: set max_steps above {first} to train on.")
            if self.core.renderer.folds_system:
                say(config, "The chat template takes no system message: the first message of the user says it too.")
            aside = make_room(config, self.saved)
            if aside is not None:
                say(config, f"An earlier run was there: it is in {shown(aside)} now.")
            self.record = RunRecord.of(config, self.saved)
            self.record.write(config.output_dir)
            say_differences(config, self.record)
            title, about = config.exp_name, headline(config, self.plan)
            self.progress.start(config.max_steps, title, about, first_step=first)
        self.log = RunLog(config, self.progress, state)
        self.log.trackers.log_config(self.record.keys, self.record.text)

    async def train(self, step: int) -> None:
        """One step: sample, make a batch, learn from it, publish the new weights, report."""
        with self.progress.stage("rollout"):
            rollout = await self.rollout(step)
            self.report_failures(rollout.groups, f"step {step}")
            self.store(rollout.groups, step, "train")
        batch = self.learner.make_batch(rollout.groups)
        learned = await to_its_end(lambda: self.update(batch, step))
        described = prefixed(rollout_metrics(rollout.groups, self.reporter), "rollout")
        named = {"reward/mean": described.get("rollout/reward", 0.0)}
        if self.reporter == "env":
            named["env/success"] = described.get("rollout/success", 0.0)
        self.log.step(step, {**named, **described, **rollout.metrics, **learned, **await self.measure()})
        self.core.weight_check.require()

    async def update(self, batch: Lesson, step: int) -> dict[str, float]:
        """Learn from a batch and publish the new weights; afterwards ``step`` is complete."""
        turns, check = self.core.turns, self.core.weight_check
        due = step % self.config.actor_infer.model_update_frequency == 0
        async with self.core.engines.weights_at_rest:
            measured = await turns.memory("rollout") if turns.needed else {}
            await turns.begin_update()
            measured |= await check.late()
            check.require()
            self.unsaved = None
            with algorithm_warnings(self.progress):
                learned = measured | await self.learner.learn(batch, step)
            learned |= await turns.memory("update") if turns.needed else {}
            await turns.begin_weight_sync()
            if due:
                with self.progress.stage("weight_sync"):
                    learned |= await self.publish(step)
            await turns.end_weight_sync()
            self.complete(step)
            self.unsaved = step
            if due:
                with self.progress.stage("weight_sync"):
                    learned |= await check.run(step)
        return learned

    def report_evaluation(self, groups: Sequence[TrajectoryGroup], step: int, metrics: dict[str, float]) -> None:
        """Store an evaluation, write its review pages and log its metrics."""
        self.report_failures(groups, f"evaluation after step {step}")
        with self.progress.stage("eval"):
            self.store(groups, step, "val")
            write_pages(
                shown_episodes(groups),
                self.config.render_path,
                title=self.config.exp_name,
                step=step,
                token_text=self.core.token_text,
                of=list(_trajectories(groups)),
            )
        self.log.evaluation(step, prefixed(metrics, "val"))

    async def save(self, step: int) -> None:
        """Write a checkpoint from which the run continues exactly, with the policy in Hugging Face format beside it."""
        config = self.config
        self.unsaved = None
        with self.progress.stage("checkpoint"):
            state = checkpoint_state(config, self.log, {**self.learner.state(), **self.state()})
            root, keep = config.checkpoint_path, config.checkpoint_config.keep
            with new_checkpoint(root, step, state, keep=keep) as folder:
                self.record.write(folder)
                async with self.core.turns.for_models():
                    await self.learner.save(folder)
        self.saved, self.recoveries = folder_of(root, step), 0

    async def _save_at_the_end(self, step: int, error: BaseException) -> None:
        """Save the last completed step of a run that ends; where workers or room are gone too, say so."""
        try:
            await to_its_end(lambda: self.save(step))
        except (WorkerError, StorageError) as second:
            self.not_saved = f"Step {step} could not be saved: {second}"
            error.add_note(self.not_saved)

    async def restore(self, path: Path, step: int, state: dict[str, Any]) -> None:
        """Load a checkpoint into the learner, the engine and the pipeline."""
        await self.learner.restore(path, state)
        self.load_state(state)
        await self.publish_first(step)

    async def publish_first(self, step: int) -> None:
        """Give engines that were just started the weights of ``step``, and check that they have them."""
        check = self.core.weight_check
        # They have cached nothing, and may not answer before: load_format=dummy makes random weights.
        await self.core.engines.publish(step)
        await check.run(step)
        await check.late()
        check.require()

    def report_failures(self, groups: Sequence[TrajectoryGroup], where: str) -> None:
        """Say how many episodes broke, and why the first of them did."""
        everything = list(_trajectories(groups))
        failed = [trajectory for trajectory in everything if trajectory.status.is_error]
        if failed:
            first = " ".join(str(failed[0].error).split())
            self.progress.warning(f"{where}: {len(failed)} of {len(everything)} episodes failed. The first: {first}")

    def how_to_continue(self) -> str:
        """Return a sentence that says what is saved and the command that goes on from there."""
        lost = f"{self.not_saved}\n" if self.not_saved else ""
        if self.saved is None:
            return f"{lost}No step was saved, so there is nothing to continue from."
        command = resume_command(self.config)
        how = f"Continue with:\n  {command}" if command else "Continue with resume_from_checkpoint=true."
        return f"{lost}The newest checkpoint is {shown(self.saved)}. {how}"

    def store(self, groups: Sequence[TrajectoryGroup], step: int, phase: Phase) -> None:
        """Write the trajectories of a step as parquet, where that is due."""
        every = self.config.trajectory_dump_steps
        if every and (phase == "val" or step % every == 0):
            path = trajectory_path(self.config.output_dir, step, phase)
            write_trajectories(path, list(_trajectories(groups)), step=step, phase=phase, run=self.config.exp_name)


def run_pipeline(kind: type[Pipeline[Config]], config: Config, notes: Sequence[str]) -> RunSummary:
    """Run a pipeline to its end and return what came of it.

    Args:
        kind: The pipeline.
        config: A configuration that its preflight check has passed.
        notes: What that check found to have no effect.

    Raises:
        ConfigError: If the configuration asks for what is not there (a model, a checkpoint), or another run writes to
            its folders. Nothing has been written.
        RunError: If the run cannot go on (every episode fails, a gradient is not finite, a disk is full).
        KeyboardInterrupt: After Ctrl-C or SIGTERM. Of either, the last completed step is saved, and the message says
            how to continue.
    """
    with own_folders(config) as more, quiet_transformers(), make_progress(config.progress) as progress:
        introduce(config, plan(config), [*notes, *more, *settle_process(config.system_envs)])
        pipeline = kind(config, progress)
        try:
            with refusals_end_the_run(folders(config), pipeline.how_to_continue):
                return run_to_end(_until_stopped(pipeline))
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise KeyboardInterrupt(f"Stopped. {pipeline.how_to_continue()}") from None
        except (
            RolloutError,
            GroupMismatchError,
            FloatingPointError,
            WorkerError,
            WeightSyncError,
            WeightCheckError,
        ) as error:
            raise RunError(f"{error}\n{pipeline.how_to_continue()}") from error


async def _until_stopped(pipeline: Pipeline[Config]) -> RunSummary:
    """Run a pipeline; SIGTERM, which a cluster sends before it takes a machine away, stops it as Ctrl-C does."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    listening = task is not None and threading.current_thread() is threading.main_thread()
    if listening and task is not None:
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await pipeline.run()
    finally:
        if listening:
            loop.remove_signal_handler(signal.SIGTERM)


def shown_episodes(groups: Sequence[TrajectoryGroup]) -> list[Trajectory]:
    """Return the episodes that get a review page; where there are many groups, one each of some, always the same."""
    if len(groups) < PAGES_PER_EVALUATION:
        return list(_trajectories(groups))[:PAGES_PER_EVALUATION]
    # Drawn, not every n-th one: difficulties may come round in turn.
    chosen = sorted(random.Random(0).sample(range(len(groups)), PAGES_PER_EVALUATION))
    return [groups[index].trajectories[0] for index in chosen]


def _trajectories(groups: Sequence[TrajectoryGroup]) -> Iterator[Trajectory]:
    for group in groups:
        yield from group.trajectories
