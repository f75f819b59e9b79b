"""The configuration of the RLVR pipeline."""

from __future__ import annotations

from collections.abc import Iterator

from roll.config.batch_plan import BatchPlan, PromptPlan, batch_plan
from roll.config.errors import Problem
from roll.config.grading_keys import RewardConfig
from roll.config.rlvr_checks import rlvr_cautions, rlvr_problems
from roll.config.rlvr_keys import RLVRKeys
from roll.config.worker import WorkerConfig


class RLVRConfig(RLVRKeys):
    """Everything that ``examples/start_rlvr_pipeline.py`` reads."""

    program = "examples/start_rlvr_pipeline.py"

    def plan(self) -> BatchPlan:
        """Return what training and evaluation answer, and how that becomes optimiser steps."""
        sampling = self.dynamic_sampling
        refill = self.rollout_batch_size * sampling.max_batches if sampling.enable else None
        train = PromptPlan(self.rollout_batch_size, self.num_return_sequences_in_group, refill)
        val = PromptPlan(None, self.val_generating.num_return_sequences) if self.validation else None
        return batch_plan(self, train, val, self.actor_infer.generating_args.max_new_tokens)

    def worker_roles(self) -> Iterator[tuple[str, WorkerConfig]]:
        """Yield the roles that have workers of their own: models, and the graders of each domain."""
        yield from super().worker_roles()
        for domain, reward in (self.rewards or {"": RewardConfig()}).items():
            yield f"rewards.{domain}", reward

    def problems(self) -> Iterator[Problem]:
        """Yield every contradiction between keys that are each valid alone."""
        yield from super().problems()
        yield from rlvr_problems(self)

    def cautions(self) -> Iterator[str]:
        """Yield what has no effect or probably not the one that was meant."""
        yield from super().cautions()
        yield from rlvr_cautions(self)
