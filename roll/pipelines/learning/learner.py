"""The learning half of a step: trajectories -> samples -> batch -> log-probs -> advantages -> optimiser steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Literal, Protocol

import numpy as np
import torch
from tensordict import TensorDict
from transformers import PreTrainedTokenizerBase

from roll.algorithms.groups import AlgorithmWarning, encode
from roll.algorithms.registry import LOSSES
from roll.config import RLConfig
from roll.pipelines.learning.batches import TrainingBatch, mini_batches, training_batch
from roll.pipelines.learning.credit import CreditState, assign_credit
from roll.pipelines.learning.entropy_record import EntropyRecorder, keeping_entropies
from roll.pipelines.learning.expert_rows import EXPERT, STEP, Answers, Experts, joined
from roll.pipelines.learning.loss_scope import correct_sampler
from roll.pipelines.learning.objective import PolicyObjective, merge_metrics
from roll.pipelines.learning.token_record import store_learned
from roll.pipelines.learning.value_objective import ValueObjective, critic_metrics, explained_variance
from roll.pipelines.reporting.metrics import batch_metrics, prefixed
from roll.pipelines.roles.models import ScoreRole, TrainRole
from roll.pipelines.run.checkpoint import write_tokenizer
from roll.strategies.training.micro_batches import PAIR
from roll.tracking import Progress
from roll.trajectories.model import Trajectory, TrajectoryGroup

CRITIC = "critic"
"""Folder of the critic's state in a checkpoint."""


_OF_CREDIT: Final = frozenset({"token_rewards", "turn_index", "state_hashes", "sampler_log_probs"})
"""Columns that advantages are made of; trainers are sent only those that the loss asks for."""


class LearningModels(Protocol):
    """The models that a learner asks, and changes."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Of the policy."""
        ...

    @property
    def trainer(self) -> TrainRole:
        """The policy."""
        ...

    @property
    def critic(self) -> TrainRole | None:
        """The value model, where the estimator needs one."""
        ...

    @property
    def reference(self) -> ScoreRole | None:
        """The frozen policy, where a term needs it."""
        ...


class Learner:
    """Turns trajectories into new weights.

    Args:
        config: A checked configuration.
        core: The models.
        progress: Told which stage runs.
        sample_mode: One sample per trajectory, or one per turn.
        experts: What is learned from beside the trajectories.
        answers: What experts answered to the same prompts.
        compare_seats: Whom a seat of a game is compared with.
    """

    def __init__(
        self,
        config: RLConfig,
        core: LearningModels,
        progress: Progress,
        sample_mode: Literal["trajectory", "step"] = "trajectory",
        experts: Experts | None = None,
        answers: Answers | None = None,
        compare_seats: Literal["seat", "game"] = "seat",
    ) -> None:
        self.config = config
        self.core = core
        self.progress = progress
        self.sample_mode = sample_mode
        self.experts = experts
        self.answers = answers
        self.compare_seats = compare_seats
        self.update_plan = config.update_plan()
        self.credit = CreditState.from_config(config)
        self.objective = PolicyObjective.from_config(config)
        self.value_objective = ValueObjective.from_config(config)

    def make_batch(
        self, groups: Sequence[TrajectoryGroup], open_member: Callable[[Trajectory], Trajectory] | None = None
    ) -> TrainingBatch:
        """Turn trajectories into a padded batch; those that broke are left out.

        Args:
            groups: The trajectories.
            open_member: Fetches what a sealed one has elsewhere.

        Raises:
            RolloutError: If nothing is left to train on.
        """
        length = self.config.sequence_length
        batch = training_batch(
            groups,
            self.sample_mode,
            max_length=length,
            pad_token_id=self._padding,
            answers=None if self.answers is None else list(self.answers.samples(groups, open_member)),
            compare_seats=self.compare_seats,
            open_member=open_member,
        )
        if "groups" in LOSSES.get(self.config.policy_loss_name).needs:
            batch.tensors[PAIR] = encode([sample.group_id for sample in batch.samples], len(batch.samples)).codes
        return batch

    @property
    def _padding(self) -> int:
        return int(self.core.tokenizer.pad_token_id or 0)

    async def learn(self, batch: TrainingBatch, step: int) -> dict[str, float]:
        """Score the batch, assign credit, and take the optimiser steps of training step ``step``."""
        with self.progress.stage("log_probs"):
            metrics = await self.score(batch)
        with self.progress.stage("advantages"):
            metrics |= self.assign(batch)
        with self.progress.stage("update"):
            return metrics | await self.update(batch, step)

    async def score(self, batch: TrainingBatch) -> dict[str, float]:
        """Ask trainer, reference and critic about the batch."""
        return {**batch_metrics(batch.tensors), **await self._score(batch.tensors)}

    def assign(self, batch: TrainingBatch) -> dict[str, float]:
        """Give every token of the batch its credit."""
        return assign_credit(
            batch.tensors,
            batch.samples,
            batch.scores,
            self.config,
            self.credit,
            truncated=batch.truncated,
            baselines=batch.baselines,
        )

    async def update(self, batch: TrainingBatch, step: int) -> dict[str, float]:
        """Take the optimiser steps of training step ``step``."""
        tensors, metrics = batch.tensors, dict[str, float]()
        if self.core.critic is not None:
            parts = self._prepared(tensors, self.value_objective, step)
            learned = [await self.core.critic.train_step(part, self.value_objective) for part in parts]
            metrics |= critic_metrics(merge_metrics(learned))
            explained = explained_variance(tensors["values"], tensors["returns"], tensors["response_mask"])
            metrics |= {} if explained is None else {"critic/explained_variance": explained}
        if self.core.critic is not None and step <= self.config.critic_warmup:
            return metrics
        if self.experts is not None:
            written, described = self.experts.take()
            batch.tensors = tensors = joined(tensors, written, step, self._padding)
            metrics |= described
        elif self.answers is not None:
            tensors[STEP] = torch.full((len(tensors),), step)
            metrics |= _joined(batch)
        # Elsewhere a trainer is given a copy of the objective, which nobody asks afterwards.
        kept = self.config.cluster == "local" and self.config.stores(step)
        with keeping_entropies(self.objective, tensors, kept) as objective:
            parts = self._prepared(tensors, objective, step)
            updated = [await self.core.trainer.train_step(part, objective) for part in parts]
        return metrics | prefixed(merge_metrics(updated), "train")

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
        elif self.config.is_own_reference:
            batch["ref_log_probs"] = await core.trainer.compute_base_log_probs(batch)
        if core.critic is not None:
            batch["values"] = await core.critic.compute_values(batch)
        if self.config.old_log_probs == "sampler":
            batch["old_log_probs"] = batch["sampler_log_probs"].clone()
            return {}
        batch["old_log_probs"] = await core.trainer.compute_log_probs(batch)
        return correct_sampler(batch, self.config)

    def _prepared(
        self, batch: TensorDict, objective: PolicyObjective | EntropyRecorder | ValueObjective, step: int
    ) -> Iterator[TensorDict]:
        """Yield the mini-batch of each optimiser step of one role, with what its objective asks for."""
        batch = batch.exclude(*(_OF_CREDIT - self.objective.reads))
        for epoch in range(self.update_plan.epochs):
            key = (self.config.seed, step, epoch)
            drawn = torch.Generator().manual_seed(int(np.random.default_rng(key).integers(2**63)))
            for mini_batch in mini_batches(batch, self.update_plan.mini_batches, key):
                objective.prepare(mini_batch, drawn)
                yield mini_batch

    def keep(self, batch: TrainingBatch, step: int) -> None:
        """Store advantages and log-probs of the sampled tokens, where trajectories are stored."""
        store_learned(self.config, batch, step)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must remember beside the weights, as JSON."""
        experts = {} if self.experts is None else {EXPERT: self.experts.state()}
        return {"credit": self.credit.state_dict(), **experts}

    async def save(self, directory: Path) -> None:
        """Write trainer and critic, both in Hugging Face format too, the policy with its tokenizer."""
        await self.core.trainer.save(directory)
        write_tokenizer(self.core.tokenizer, directory)
        if self.core.critic is not None:
            await self.core.critic.save(directory / CRITIC)

    async def restore(self, directory: Path, state: dict[str, Any]) -> None:
        """Load what :meth:`save` wrote."""
        await self.core.trainer.load(directory)
        if self.core.critic is not None:
            await self.core.critic.load(directory / CRITIC)
        self.credit.load_state_dict(state["credit"])
        # A checkpoint of a run without experts has none, and this one begins with their first rows.
        if self.experts is not None and EXPERT in state:
            self.experts.restore(state[EXPERT])


def _joined(batch: TrainingBatch) -> dict[str, float]:
    """Return how many answers of experts joined groups, and what they earned in the mean."""
    written = batch.tensors[EXPERT].tolist()
    earned = [score for score, expert in zip(batch.scores, written, strict=True) if expert]
    return {"expert/rows": float(len(earned)), **({"expert/score": fmean(earned)} if earned else {})}


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
