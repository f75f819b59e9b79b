"""What the keys of prompts mean together, whatever is learned from the responses."""

from __future__ import annotations

from collections.abc import Iterator

from roll.config.batch_plan import BatchPlan, batch_plan
from roll.config.grading_keys import RewardConfig
from roll.config.rlvr_keys import RLVRKeys
from roll.config.worker import WorkerConfig


class AnsweringConfig(RLVRKeys):
    """Base of every run that answers prompts with the policy it trains, and does nothing else."""

    def plan(self) -> BatchPlan:
        """Return what training and evaluation answer, and how that becomes optimiser steps."""
        train = self.prompt_plan(self.rollout_batch_size)
        return batch_plan(self, train, self.validation_plan(), self.actor_infer.generating_args.max_new_tokens)

    @property
    def groups_per_step(self) -> int:
        """Groups of a training step: one for each prompt."""
        return self.rollout_batch_size

    def worker_roles(self) -> Iterator[tuple[str, WorkerConfig]]:
        """Yield the roles that have workers of their own: models, and the graders of each domain."""
        yield from super().worker_roles()
        yield from ((f"rewards.{domain}", self.rewards.get(domain) or RewardConfig()) for domain in self.graded_domains)
