"""The agentic pipeline: play, credit, update, evaluate, again.

environments -> trajectories -> samples -> batch -> advantages -> optimiser steps -> weights -> engine
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from roll.config import AgenticConfig, RunError, plan
from roll.env_managers.groups import GroupMismatchError
from roll.pipelines.assembly import Parts, assemble
from roll.pipelines.base import RunLog, is_due, resume, save_checkpoint, summarize
from roll.pipelines.command import resume_command, shown
from roll.pipelines.credit import assign_credit
from roll.pipelines.folders import make_room
from roll.pipelines.metrics import batch_metrics, prefixed, rollout_metrics, sampler_mismatch
from roll.pipelines.objective import PolicyObjective
from roll.pipelines.preflight import check
from roll.pipelines.terminal import algorithm_warnings, headline, introduce, quiet_transformers, say
from roll.schedulers.rollout import GroupSpec, RolloutError, RolloutScheduler, group_specs
from roll.strategies.base import WeightUpdate
from roll.tracking import Progress, RunSummary, make_progress
from roll.trajectories.batch import collate
from roll.trajectories.model import Trajectory, TrajectoryGroup
from roll.trajectories.samples import Sample, is_trainable, samples_from
from roll.trajectories.store import Phase, trajectory_path, write_trajectories
from roll.viewer import write_pages

PAGES_PER_EVALUATION = 16
VALIDATION_OFFSET = 1 << 40
"""Added to the numbers of validation groups: no training step ever reaches these seeds."""


def run_agentic(config: AgenticConfig) -> RunSummary:
    """Run the agentic pipeline to its end and return what came of it.

    Raises:
        ConfigError: If the configuration asks for what is not there: a tag, a model, a checkpoint, machinery that this
            version does not have. Nothing has been written then.
        RunError: If the run cannot go on (every environment fails, a gradient is not finite).
        KeyboardInterrupt: After Ctrl-C. Of either, the last completed step is saved, and the message says how to
            continue.
    """
    notes = check(config)
    introduce(config, plan(config), notes)
    with quiet_transformers(), make_progress(config.progress) as progress:
        pipeline = AgenticPipeline(config, progress)
        try:
            return asyncio.run(pipeline.run())
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"Stopped. {pipeline.how_to_continue()}") from None
        except (RolloutError, GroupMismatchError, FloatingPointError) as error:
            raise RunError(f"{error}\n{pipeline.how_to_continue()}") from error


class AgenticPipeline:
    """One run.

    Args:
        config: A checked configuration.
        progress: Where to show what happens.
    """

    def __init__(self, config: AgenticConfig, progress: Progress) -> None:
        self.config = config
        self.progress = progress
        self.plan = plan(config)
        self.objective = PolicyObjective.from_config(config)
        self.saved: Path | None = None
        # The step whose weights the trainer holds, while no checkpoint has them; none while an update is under way.
        self.unsaved: int | None = None

    async def run(self) -> RunSummary:
        """Train for ``max_steps`` steps, with evaluations and checkpoints when they are due."""
        config = self.config
        self.saved, state = resume(config)
        first = 0 if state is None else int(state["step"])
        torch.manual_seed(config.seed)
        parts = assemble(config)
        self.begin(state, first)
        try:
            if state is not None and self.saved is not None:
                await self.restore(parts, self.saved, first, state)
            if is_due(first, config.eval_steps, config.max_steps) and self.log.evaluated < first:
                await self.evaluate(parts, first)
            for step in range(first + 1, config.max_steps + 1):
                await self.train(parts, step)
                if is_due(step, config.eval_steps, config.max_steps):
                    await self.evaluate(parts, step)
                if is_due(step, config.save_steps, config.max_steps) or step == config.max_steps:
                    self.save(parts, step)
            summary = summarize(config, self.log, max(first, config.max_steps), self.saved)
            self.progress.finish(summary)
            return summary
        except (asyncio.CancelledError, Exception):
            # Ctrl-C arrives while episodes are played: updates run to their end, so a completed step can be saved.
            if self.unsaved is not None:
                self.save(parts, self.unsaved)
            raise
        finally:
            await parts.close()
            self.log.trackers.close()

    def begin(self, state: dict[str, Any] | None, first: int) -> None:
        """Open the logs and the display; what an earlier run left in the folders is moved aside."""
        config = self.config
        if config.resume_from_checkpoint and state is None:
            say(config, f"No checkpoint in {config.checkpoint_path} to resume from: starting anew.")
        if 0 < config.max_steps <= first:
            say(config, f"{self.saved} is complete: set max_steps above {first} to train on.")
        aside = make_room(config, self.saved)
        if aside is not None:
            say(config, f"An earlier run was there: it is in {shown(aside)} now.")
        self.log = RunLog(config, self.progress, state)
        title, about = config.exp_name, headline(config, self.plan)
        self.progress.start(config.max_steps, title, about, first_step=first)

    async def train(self, parts: Parts, step: int) -> None:
        """One step: roll out, score, credit, update, publish the new weights, report."""
        with self.progress.stage("rollout"):
            groups, throughput = await self.rollout(parts, step)
        with self.progress.stage("log_probs"):
            batch, samples, scores = self.make_batch(parts, groups)
            mismatch = self.score(parts, batch)
        with self.progress.stage("advantages"), algorithm_warnings(self.progress):
            credit = assign_credit(batch, samples, scores, self.config, parts.kl_controller)
        self.unsaved = None
        with self.progress.stage("update"):
            update = self.update(parts, batch, step)
            await parts.engine.update_weights(WeightUpdate(step, parts.trainer.named_parameters()))
        described = prefixed(rollout_metrics(groups), "rollout")
        named = {
            "reward/mean": described.get("rollout/reward", 0.0),
            "env/success": described.get("rollout/success", 0.0),
        }
        self.log.step(
            step,
            {**named, **described, **throughput, **batch_metrics(batch), **mismatch, **credit, **update},
        )
        self.unsaved = step

    async def rollout(self, parts: Parts, step: int) -> tuple[list[TrajectoryGroup], dict[str, float]]:
        """Play the groups of ``step`` and store their trajectories."""
        rollout = self.plan.train
        groups = rollout.groups_per_rollout
        per_step = sum(count for _, count in groups)
        specs = group_specs(groups, rollout.group_size, self.config.seed, "train-", (step - 1) * per_step)
        collected, throughput = await self._collect(parts, parts.train_rollouts, specs)
        self.report_failures(collected, f"step {step}")
        every = self.config.trajectory_dump_steps
        if every and step % every == 0:
            self._store(collected, step, "train")
        return collected, throughput

    def make_batch(
        self, parts: Parts, groups: Sequence[TrajectoryGroup]
    ) -> tuple[TensorDict, list[Sample], list[float]]:
        """Turn trajectories into a padded batch; episodes that broke are left out."""
        mode = self.config.train_env_manager.sample_mode
        samples: list[Sample] = []
        scores: list[float] = []
        for trajectory in _trajectories(groups):
            if is_trainable(trajectory):
                pieces = samples_from(trajectory, mode, max_length=self.config.sequence_length)
                samples += pieces
                scores += [trajectory.score or 0.0] * len(pieces)
        if not samples:
            reason = next((t.error for t in _trajectories(groups) if t.error), "no turn was played")
            raise RolloutError(f"No episode has a turn to train on. The first: {reason}")
        return collate(samples, int(parts.tokenizer.pad_token_id or 0)), samples, scores

    def score(self, parts: Parts, batch: TensorDict) -> dict[str, float]:
        """Fill ``old_log_probs`` and, where a term needs them, ``ref_log_probs``.

        Returns:
            How far recomputed log-probs are from the sampler's; nothing where the sampler's are taken as they are.
        """
        if parts.reference is not None:
            batch["ref_log_probs"] = parts.reference.compute_log_probs(batch)
        if self.config.old_log_probs == "sampler":
            batch["old_log_probs"] = batch["sampler_log_probs"].clone()
            return {}
        batch["old_log_probs"] = parts.trainer.compute_log_probs(batch)
        return sampler_mismatch(batch)

    def update(self, parts: Parts, batch: TensorDict, step: int) -> dict[str, float]:
        """Take the optimiser steps of one training step; returns metrics averaged over them."""
        metrics: dict[str, float] = {}
        steps = self.plan.update.optimizer_steps
        for epoch in range(self.plan.update.epochs):
            for mini_batch in _mini_batches(batch, self.plan.update.mini_batches, (self.config.seed, step, epoch)):
                for name, value in parts.trainer.train_step(mini_batch, self.objective).items():
                    metrics[name] = metrics.get(name, 0.0) + value / steps
        return prefixed(metrics, "train")

    async def evaluate(self, parts: Parts, step: int) -> None:
        """Play the validation levels, the same at every evaluation, and write their review pages."""
        rollout = self.plan.val
        groups = rollout.groups_per_rollout
        specs = group_specs(groups, rollout.group_size, self.config.seed, "val-", offset=VALIDATION_OFFSET)
        with self.progress.stage("eval"):
            collected, _ = await self._collect(parts, parts.val_rollouts, specs)
            self.report_failures(collected, f"evaluation after step {step}")
            if self.config.trajectory_dump_steps:
                self._store(collected, step, "val")
            shown = list(_trajectories(collected))[:PAGES_PER_EVALUATION]
            write_pages(
                shown,
                self.config.render_path,
                title=self.config.exp_name,
                step=step,
                token_text=lambda token: str(parts.tokenizer.decode([token])),
            )
        self.log.evaluation(step, prefixed(rollout_metrics(collected), "val"))

    def save(self, parts: Parts, step: int) -> None:
        """Write a checkpoint from which the run continues exactly, with the policy in Hugging Face format beside it."""

        def write(directory: Path) -> None:
            parts.trainer.save_checkpoint(directory)
            parts.trainer.save_hf(directory / "hf")
            parts.tokenizer.save_pretrained(directory / "hf")

        state = {"kl_controller": parts.kl_controller.state_dict() if parts.kl_controller else None}
        self.unsaved = None
        with self.progress.stage("checkpoint"):
            self.saved = save_checkpoint(self.config, step, self.log, state, write)

    async def restore(self, parts: Parts, path: Path, step: int, state: dict[str, Any]) -> None:
        """Load a checkpoint into the trainer and the engine."""
        parts.trainer.load_checkpoint(path)
        if parts.kl_controller is not None:
            parts.kl_controller.load_state_dict(state["kl_controller"])
        await parts.engine.update_weights(WeightUpdate(step, parts.trainer.named_parameters()))

    def report_failures(self, groups: Sequence[TrajectoryGroup], where: str) -> None:
        """Say how many episodes broke, and why the first of them did."""
        everything = list(_trajectories(groups))
        failed = [trajectory for trajectory in everything if trajectory.status.is_error]
        if failed:
            first = " ".join(str(failed[0].error).split())
            self.progress.warning(f"{where}: {len(failed)} of {len(everything)} episodes failed. The first: {first}")

    def how_to_continue(self) -> str:
        """Return a sentence that says what is saved and the command that goes on from there."""
        if self.saved is None:
            return "No step was complete, so there is nothing to continue from."
        command = resume_command(self.config)
        how = f"Continue with:\n  {command}" if command else "Continue with resume_from_checkpoint=true."
        return f"The newest checkpoint is {shown(self.saved)}. {how}"

    def _store(self, groups: Sequence[TrajectoryGroup], step: int, phase: Phase) -> None:
        path = trajectory_path(self.config.output_dir, step, phase)
        write_trajectories(path, list(_trajectories(groups)), step=step, phase=phase, run=self.config.exp_name)

    async def _collect(
        self, parts: Parts, scheduler: RolloutScheduler, specs: list[GroupSpec]
    ) -> tuple[list[TrajectoryGroup], dict[str, float]]:
        """Play ``specs``, showing progress; returns the groups and tokens per second."""
        before, begun = parts.generation.sampled_tokens, time.perf_counter()

        def show(done: int, total: int) -> None:
            self.progress.rollout_progress(done, total, parts.generation.sampled_tokens - before)

        groups = await scheduler.collect(specs, show)
        seconds = time.perf_counter() - begun
        sampled = parts.generation.sampled_tokens - before
        processed = sum(trajectory.total_tokens for trajectory in _trajectories(groups))
        return groups, {
            "throughput/tokens_per_second": processed / seconds,
            "throughput/sampled_tokens_per_second": sampled / seconds,
        }


def _trajectories(groups: Sequence[TrajectoryGroup]) -> Iterator[Trajectory]:
    for group in groups:
        yield from group.trajectories


def _mini_batches(batch: TensorDict, count: int, key: Sequence[int]) -> Iterator[TensorDict]:
    """Yield ``count`` parts of the batch in an order that ``key`` alone decides."""
    order = np.random.default_rng(list(key)).permutation(len(batch))
    for rows in np.array_split(order, count):
        if len(rows):
            yield batch[torch.from_numpy(rows)]
