"""What the keys of reinforcement learning mean together: plan, workers, contradictions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from roll.config.batch_plan import BatchPlan, UpdatePlan, update_plan
from roll.config.checks import rl_cautions, rl_problems
from roll.config.env_manager import RewardNormalization
from roll.config.errors import Problem
from roll.config.rl_keys import RLKeys
from roll.config.worker import WorkerConfig


class RLConfig(RLKeys):
    """Base of every configuration of reinforcement learning. A kind says what it samples (:meth:`plan`)."""

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

    def identity(self) -> dict[str, Any]:
        """Return the keys that must not change when the run is resumed."""
        return {**super().identity(), "pretrain": self.pretrain, "rollout_batch_size": self.rollout_batch_size}

    def worker_roles(self) -> Iterator[tuple[str, WorkerConfig]]:
        """Yield the roles that have workers of their own, as far as the run uses them."""
        for name, worker in self.roles():
            if name != "reference" and (name != "critic" or self.adv_estimator == "gae"):
                yield name, worker
        if self.needs_reference:
            # Without keys of its own the reference is the policy before training, scored where the policy trains.
            yield "reference", self.reference or self.actor_train

    @property
    def score_normalization(self) -> RewardNormalization:
        """How scores are normalised beyond the keys of the algorithm."""
        return RewardNormalization()

    @property
    def response_limit(self) -> int:
        """Most response tokens of a trajectory."""
        limit = self.response_length or self.sequence_length
        return min(limit, self.actor_infer.generating_args.max_new_tokens)

    def problems(self) -> Iterator[Problem]:
        """Yield every contradiction between keys that are each valid alone."""
        yield from super().problems()
        yield from rl_problems(self)

    def cautions(self) -> Iterator[str]:
        """Yield what has no effect or probably not the one that was meant."""
        yield from super().cautions()
        yield from rl_cautions(self)
