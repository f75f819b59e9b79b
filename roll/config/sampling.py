"""What the keys of a run that samples from the policy it trains mean together, whatever it then learns from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from roll.config.batch_checks import mini_batch_problems, oversized_batch_caution
from roll.config.batch_plan import BatchPlan, UpdatePlan, update_plan
from roll.config.checks import length_problems
from roll.config.env_manager import RewardNormalization
from roll.config.errors import Problem
from roll.config.opponents import OpponentConfig
from roll.config.over_rollout import over_rollout_cautions, over_rollout_problems
from roll.config.role_checks import role_problems
from roll.config.sampling_keys import DivergenceKind, SamplingKeys


class SamplingConfig(SamplingKeys):
    """Base of every run that samples from the policy it trains. A kind says what it samples (:meth:`plan`)."""

    samples = True
    plays: ClassVar[bool] = False
    """Whether it plays levels of environments; what else a run samples are responses to prompts."""

    @property
    def learns_at_once(self) -> bool:
        """Whether what is sampled is learned from in the same run, without a store in between."""
        return True

    def plan(self) -> BatchPlan:
        """Return what a step samples, and how that becomes optimiser steps."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it samples.")

    def update_plan(self) -> UpdatePlan:
        """Return how the trajectories of a step become optimiser steps."""
        return update_plan(self)

    @property
    def total_optimizer_steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.max_steps * self.update_plan().optimizer_steps

    @property
    def training_temperature(self) -> float:
        """That of sampling; greedy sampling has the log-probs of the untempered policy."""
        return self.actor_infer.generating_args.temperature or 1.0

    @property
    def score_normalization(self) -> RewardNormalization:
        """How scores are normalised beyond the keys of the algorithm."""
        return RewardNormalization()

    @property
    def estimator(self) -> str | None:
        """The advantage estimator; ``None`` where scores are not what is learned from."""
        return None

    @property
    def measured_from(self) -> tuple[str, ...]:
        """The frozen roles whose distributions the trainer compares with its own over the whole vocabulary."""
        return ()

    @property
    def measures_top_k(self) -> bool:
        """Whether batches have the likeliest tokens of frozen models, which the trainer compares with its own."""
        return False

    @property
    def measured_by(self) -> tuple[DivergenceKind, float, float]:
        """By which divergence it compares them, the mixture of that, and its own temperature."""
        return "reverse_kl", 0.5, 1.0

    def text_readers(self) -> Iterator[tuple[str | None, str]]:
        """Yield what of the run reads text alone, and has no place beside pictures: its key, if one asks for it."""
        yield from ()

    @property
    def opponent_roles(self) -> Mapping[str, OpponentConfig]:
        """Models that have seats of games beside the policy, by name."""
        return {}

    def identity(self) -> dict[str, Any]:
        """Return the keys that must not change when the run is resumed."""
        return {**super().identity(), "pretrain": self.pretrain, "rollout_batch_size": self.rollout_batch_size}

    @property
    def stores_samples(self) -> bool:
        """Whether trajectories of training steps are written."""
        return self.trajectory_dump_steps > 0

    def stores(self, step: int) -> bool:
        """Whether the trajectories of a training step are written."""
        return self.stores_samples and step % self.trajectory_dump_steps == 0

    def problems(self) -> Iterator[Problem]:
        """Yield every contradiction between keys that are each valid alone."""
        yield from super().problems()
        for role, worker in self.roles():
            yield from role_problems(self, role, worker)
        yield from length_problems(self)
        yield from over_rollout_problems(self)
        yield from mini_batch_problems(self)

    def cautions(self) -> Iterator[str]:
        """Yield what has no effect or probably not the one that was meant."""
        yield from super().cautions()
        yield from oversized_batch_caution(self)
        yield from over_rollout_cautions(self)
