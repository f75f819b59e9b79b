"""The configuration of the RLVR pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from roll.config.batch_plan import BatchPlan, batch_plan
from roll.config.checks import responses_problems
from roll.config.errors import Problem
from roll.config.grading_keys import RewardConfig
from roll.config.rl import RLConfig
from roll.config.rlvr_checks import rlvr_cautions, rlvr_problems
from roll.config.rlvr_keys import RLVRKeys
from roll.config.worker import WorkerConfig


class RLVRConfig(RLVRKeys, RLConfig):
    """Everything that ``examples/start_rlvr_pipeline.py`` reads."""

    program = "examples/start_rlvr_pipeline.py"
    needs_rewards: ClassVar[bool] = True

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
        for domain, reward in (self.rewards or {"": RewardConfig()}).items():
            yield f"rewards.{domain}", reward

    def problems(self) -> Iterator[Problem]:
        """Yield every contradiction between keys that are each valid alone."""
        yield from super().problems()
        yield from rlvr_problems(self)
        yield from responses_problems(self, self.num_return_sequences_in_group)

    def cautions(self) -> Iterator[str]:
        """Yield what has no effect or probably not the one that was meant."""
        yield from super().cautions()
        yield from rlvr_cautions(self)
