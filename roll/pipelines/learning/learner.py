"""The learning half of a step: trajectories -> samples -> batch -> log-probs -> advantages -> optimiser steps."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
import torch
from tensordict import TensorDict

from roll.algorithms.groups import AlgorithmWarning
from roll.config import RLConfig
from roll.pipelines.learning.credit import CreditState, assign_credit
from roll.pipelines.learning.loss_scope import correct_sampler
from roll.pipelines.learning.objective import PolicyObjective, merge_metrics
from roll.pipelines.learning.value_objective import ValueObjective, critic_metrics, explained_variance
from roll.pipelines.reporting.metrics import batch_metrics, prefixed
from roll.pipelines.roles.core import Core
from roll.pipelines.roles.models import TrainRole
from roll.schedulers.groups import RolloutError
from roll.tracking import Progress
from roll.trajectories.batch import collate
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup
from roll.trajectories.samples import Sample, is_trainable, samples_from
from roll.workers.train import HF

CRITIC = "critic"
"""Folder of the critic's state in a checkpoint."""


@dataclass(slots=True)
class TrainingBatch:
    """What one step learns from.

    Attributes:
        tensors: The padded samples (see :func:`roll.trajectories.batch.collate`).
        samples: The same as lists.
        scores: The score of each sample's trajectory.
        truncated: Whether that trajectory was cut off at a length limit.
        baselines: The score of the greedy member of its group; ``None`` where groups have none.
    """

    tensors: TensorDict
    samples: list[Sample]
    scores: list[float]
    truncated: list[bool]
    baselines: list[float] | None


class Learner:
    """Turns trajectories into new weights.

    Args:
        config: A checked configuration.
        core: The models.
        progress: Told which stage runs.
        sample_mode: One sample per trajectory, or one per turn.
    """

    def __init__(
        self,
        config: RLConfig,
        core: Core,
        progress: Progress,
        sample_mode: Literal["trajectory", "step"] = "trajectory",
    ) -> None:
        self.config = config
        self.core = core
        self.progress = progress
        self.sample_mode = sample_mode
        self.update_plan = config.update_plan()
        self.credit = CreditState.from_config(config)
        self.objective = PolicyObjective.from_config(config)
        self.value_objective = ValueObjective.from_config(config)

    def make_batch(self, groups: Sequence[TrajectoryGroup]) -> TrainingBatch:
        """Turn trajectories into a padded batch; those that broke are left out.

        Raises:
            RolloutError: If nothing is left to train on.
        """
        batch = TrainingBatch(TensorDict({}, batch_size=[]), [], [], [], None)
        baselines: list[float] = []
        for group, trajectory in _members(groups):
            if not is_trainable(trajectory):
                continue
            samples = samples_from(trajectory, self.sample_mode, max_length=self.config.sequence_length)
            batch.samples += samples
            batch.scores += [trajectory.score or 0.0] * len(samples)
            batch.truncated += [trajectory.status is Status.TRUNCATED_LENGTH] * len(samples)
            baselines += [_baseline(group)] * len(samples)
        if not batch.samples:
            reason = next((t.error for _, t in _members(groups) if t.error), "no turn was played")
            raise RolloutError(f"No episode has a turn to train on. The first: {reason}")
        batch.baselines = baselines if any(group.baseline is not None for group in groups) else None
        batch.tensors = collate(batch.samples, int(self.core.tokenizer.pad_token_id or 0))
        return batch

    async def learn(self, batch: TrainingBatch, step: int) -> dict[str, float]:
        """Score the batch, assign credit, and take the optimiser steps of training step ``step``."""
        tensors = batch.tensors
        with self.progress.stage("log_probs"):
            metrics = {**batch_metrics(tensors), **await self._score(tensors)}
        with self.progress.stage("advantages"):
            metrics |= assign_credit(
                tensors,
                batch.samples,
                batch.scores,
                self.config,
                self.credit,
                truncated=batch.truncated,
                baselines=batch.baselines,
            )
        with self.progress.stage("update"):
            if self.core.critic is not None:
                metrics |= critic_metrics(await self._update(self.core.critic, self.value_objective, tensors, step))
                explained = explained_variance(tensors["values"], tensors["returns"], tensors["response_mask"])
                metrics |= {} if explained is None else {"critic/explained_variance": explained}
            if self.core.critic is None or step > self.config.critic_warmup:
                metrics |= prefixed(await self._update(self.core.trainer, self.objective, tensors, step), "train")
        return metrics

    async def _score(self, batch: TensorDict) -> dict[str, float]:
        """Fill ``old_log_probs`` and, where a term needs them, ``values`` and what the reference says.

        Returns:
            How far recomputed log-probs are from the sampler's; nothing where the sampler's are taken as they are.
        """
        core = self.core
        if core.reference is not None and self.config.kl_penalty == "full":
            batch["ref_states"] = await core.reference.compute_states(batch)
            batch["divergence"] = await core.trainer.compute_divergence(batch)
        elif core.reference is not None:
            batch["ref_log_probs"] = await core.reference.compute_log_probs(batch)
        if core.critic is not None:
            batch["values"] = await core.critic.compute_values(batch)
        if self.config.old_log_probs == "sampler":
            batch["old_log_probs"] = batch["sampler_log_probs"].clone()
            return {}
        batch["old_log_probs"] = await core.trainer.compute_log_probs(batch)
        return correct_sampler(batch, self.config)

    async def _update(
        self, trainer: TrainRole, objective: PolicyObjective | ValueObjective, batch: TensorDict, step: int
    ) -> dict[str, float]:
        """Take the optimiser steps of one role; returns metrics over all of them."""
        reports = []
        for epoch in range(self.update_plan.epochs):
            key = (self.config.seed, step, epoch)
            drawn = torch.Generator().manual_seed(int(np.random.default_rng(key).integers(2**63)))
            for mini_batch in _mini_batches(batch, self.update_plan.mini_batches, key):
                objective.prepare(mini_batch, drawn)
                reports.append(await trainer.train_step(mini_batch, objective))
        return merge_metrics(reports)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must remember beside the weights, as JSON."""
        return {"credit": self.credit.state_dict()}

    async def save(self, directory: Path) -> None:
        """Write trainer and critic, both in Hugging Face format too, the policy with its tokenizer."""
        await self.core.trainer.save(directory)
        self.core.tokenizer.save_pretrained(directory / HF)
        if self.core.critic is not None:
            await self.core.critic.save(directory / CRITIC)

    async def restore(self, directory: Path, state: dict[str, Any]) -> None:
        """Load what :meth:`save` wrote."""
        await self.core.trainer.load(directory)
        if self.core.critic is not None:
            await self.core.critic.load(directory / CRITIC)
        self.credit.load_state_dict(state["credit"])


def _baseline(group: TrajectoryGroup) -> float:
    """Return the score of the greedy member; where that one broke, the mean of the others stands in for it."""
    return fmean(group.scores) if group.baseline is None else group.baseline


def _members(groups: Sequence[TrajectoryGroup]) -> Iterator[tuple[TrajectoryGroup, Trajectory]]:
    for group in groups:
        for trajectory in group.trajectories:
            yield group, trajectory


def _mini_batches(batch: TensorDict, count: int, key: Sequence[int]) -> Iterator[TensorDict]:
    """Yield ``count`` parts of the batch in an order that ``key`` alone decides."""
    order = np.random.default_rng(list(key)).permutation(len(batch))
    for rows in np.array_split(order, count):
        if len(rows):
            yield batch[torch.from_numpy(rows)]


@contextmanager
def algorithm_warnings(progress: Progress) -> Iterator[None]:
    """Show what the maths warns about (all advantages zero, …) on the display, each sentence once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AlgorithmWarning)
        yield
    ours = [item for item in caught if issubclass(item.category, AlgorithmWarning)]
    for message in dict.fromkeys(str(item.message) for item in ours):
        progress.warning(message)
    for item in caught:
        if item not in ours:
            warnings.warn_explicit(item.message, item.category, item.filename, item.lineno)
