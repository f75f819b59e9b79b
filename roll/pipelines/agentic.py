"""The agentic pipeline: play, credit, update, evaluate, again.

    environments -> trajectories -> samples -> batch -> advantages -> optimiser steps -> weights -> engine
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict

from roll.config import AgenticConfig, plan, require_runnable
from roll.pipelines.assembly import Parts, assemble
from roll.pipelines.base import RunLog, is_due, resume, save_checkpoint, summarize
from roll.pipelines.credit import assign_credit
from roll.pipelines.metrics import batch_metrics, prefixed, rollout_metrics, sampler_mismatch
from roll.pipelines.objective import PolicyObjective
from roll.schedulers.rollout import GroupSpec, RolloutScheduler, group_specs
from roll.strategies.base import WeightUpdate
from roll.tracking import Progress, RunSummary, make_progress
from roll.trajectories.batch import collate
from roll.trajectories.model import Trajectory, TrajectoryGroup
from roll.trajectories.samples import Sample, is_trainable, samples_from
from roll.trajectories.store import Phase, trajectory_path, write_trajectories
from roll.viewer import write_pages

SCRIPT = "examples/start_agentic_pipeline.py"
PAGES_PER_EVALUATION = 16
VALIDATION_OFFSET = 1 << 40
"""Added to the numbers of validation groups: no training step ever reaches these seeds."""


def run_agentic(config: AgenticConfig) -> RunSummary:
    """Run the agentic pipeline to its end and return what came of it.

    Raises:
        ConfigError: If the configuration asks for machinery that this version does not have.
    """
    require_runnable(config)
    with make_progress(config.progress) as progress:
        return asyncio.run(AgenticPipeline(config, progress).run())


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

    async def run(self) -> RunSummary:
        """Train for ``max_steps`` steps, with evaluations and checkpoints when they are due."""
        config = self.config
        begun_from, state = resume(config)
        first = 0 if state is None else int(state["step"])
        torch.manual_seed(config.seed)
        parts = assemble(config)
        self.log = RunLog(config, self.progress, state)
        self.progress.start(config.max_steps, config.exp_name, self.plan.describe(), first_step=first)
        try:
            if begun_from is not None:
                await self._restore(parts, begun_from, first, state or {})
            elif config.eval_steps:
                await self.evaluate(parts, 0)
            for step in range(first + 1, config.max_steps + 1):
                await self.train(parts, step)
                if is_due(step, config.eval_steps, config.max_steps):
                    await self.evaluate(parts, step)
                if is_due(step, config.save_steps, config.max_steps) or step == config.max_steps:
                    self.save(parts, step)
            summary = summarize(config, self.log, config.max_steps, SCRIPT, self.saved or begun_from)
            self.progress.finish(summary)
            return summary
        finally:
            await parts.close()
            self.log.trackers.close()

    async def train(self, parts: Parts, step: int) -> None:
        """One step: roll out, score, credit, update, publish the new weights, report."""
        with self.progress.stage("rollout"):
            groups, throughput = await self.rollout(parts, step)
        with self.progress.stage("log_probs"):
            batch, samples, scores = self.make_batch(parts, groups)
            self.score(parts, batch)
        with self.progress.stage("advantages"):
            credit = assign_credit(batch, samples, scores, self.config, parts.kl_controller)
        with self.progress.stage("update"):
            update = self.update(parts, batch, step)
            if step % self.config.actor_infer.model_update_frequency == 0:
                await parts.engine.update_weights(WeightUpdate(step, parts.trainer.named_parameters()))
        described = prefixed(rollout_metrics(groups), "rollout")
        named = {"reward/mean": described.get("rollout/reward", 0.0), "env/success": described.get("rollout/success", 0.0)}
        self.log.step(
            step,
            {**named, **described, **throughput, **batch_metrics(batch), **sampler_mismatch(batch), **credit, **update},
        )

    async def rollout(self, parts: Parts, step: int) -> tuple[list[TrajectoryGroup], dict[str, float]]:
        """Play the groups of ``step`` and store their trajectories."""
        rollout = self.plan.train
        groups = [(tag, count * rollout.episodes_per_environment) for tag, count in rollout.groups]
        per_step = sum(count for _, count in groups)
        specs = group_specs(groups, rollout.group_size, self.config.seed, "train-", (step - 1) * per_step)
        collected, throughput = await self._collect(parts, parts.train_rollouts, specs)
        every = self.config.trajectory_dump_steps
        if every and step % every == 0:
            self._store(collected, step, "train")
        return collected, throughput

    def make_batch(self, parts: Parts, groups: Sequence[TrajectoryGroup]) -> tuple[TensorDict, list[Sample], list[float]]:
        """Turn trajectories into a padded batch; episodes that broke are left out."""
        mode = self.config.train_env_manager.sample_mode
        samples: list[Sample] = []
        scores: list[float] = []
        for trajectory in _trajectories(groups):
            if is_trainable(trajectory):
                pieces = samples_from(trajectory, mode, max_length=self.config.sequence_length)
                samples += pieces
                scores += [trajectory.score or 0.0] * len(pieces)
        return collate(samples, int(parts.tokenizer.pad_token_id or 0)), samples, scores

    def score(self, parts: Parts, batch: TensorDict) -> None:
        """Fill ``old_log_probs`` (recomputed, or the sampler's) and, where a term needs them, ``ref_log_probs``."""
        if self.config.old_log_probs == "recompute":
            batch["old_log_probs"] = parts.trainer.compute_log_probs(batch)
        else:
            batch["old_log_probs"] = batch["sampler_log_probs"].clone()
        if parts.reference is not None:
            batch["ref_log_probs"] = parts.reference.compute_log_probs(batch)

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
        groups = [(tag, count * rollout.episodes_per_environment) for tag, count in rollout.groups]
        specs = group_specs(groups, rollout.group_size, self.config.seed, "val-", offset=VALIDATION_OFFSET)
        with self.progress.stage("eval"):
            collected, _ = await self._collect(parts, parts.val_rollouts, specs)
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
        with self.progress.stage("checkpoint"):
            self.saved = save_checkpoint(self.config, step, self.log, state, write)

    async def _restore(self, parts: Parts, path: Path, step: int, state: dict[str, object]) -> None:
        parts.trainer.load_checkpoint(path)
        if parts.kl_controller is not None:
            parts.kl_controller.load_state_dict(state["kl_controller"])  # type: ignore[arg-type]
        await parts.engine.update_weights(WeightUpdate(step, parts.trainer.named_parameters()))

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
