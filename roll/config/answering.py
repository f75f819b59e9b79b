"""What the keys of prompts mean together, whatever is learned from the responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from roll.config.batch_plan import BatchPlan, batch_plan
from roll.config.grading_keys import RewardConfig
from roll.config.rlvr_keys import RLVRKeys
from roll.config.worker import WorkerConfig

_SHORT: Final = 16
"""Tokens of a response where only the way counts."""


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

    def smallest_sizes(self) -> Iterator[tuple[str, Any]]:
        """Yield sizes with which a step has little to do and does everything: four prompts, short responses."""
        yield "rollout_batch_size", 4
        yield "num_return_sequences_in_group", min(4, self.num_return_sequences_in_group)
        yield "actor_infer.generating_args.max_new_tokens", _SHORT
        yield "response_length", _SHORT
        if self.validation is not None:
            yield "validation.data_args.max_samples", 4

    def worker_roles(self) -> Iterator[tuple[str, WorkerConfig]]:
        """Yield the roles that have workers of their own: models, and the graders of each domain."""
        yield from super().worker_roles()
        yield from ((f"rewards.{domain}", self.rewards.get(domain) or RewardConfig()) for domain in self.graded_domains)
