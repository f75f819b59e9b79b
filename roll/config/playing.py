"""What the keys of environments, and of prompts beside them, mean together, whatever is learned from the episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from roll.config.agentic_checks import playing_problems
from roll.config.agentic_keys import AgenticKeys
from roll.config.batch_plan import BatchPlan, MixedPlan, batch_plan, rollout_plan
from roll.config.env_manager import EnvManagerConfig
from roll.config.errors import Problem
from roll.config.opponents import OpponentConfig
from roll.config.prompt_keys import PROMPTS
from roll.config.worker import WorkerConfig


class PlayingConfig(AgenticKeys):
    """Base of every run that plays episodes with the policy it trains, and may answer prompts beside them."""

    plays: ClassVar[bool] = True

    def plan(self) -> BatchPlan:
        """Return what training and evaluation play, and how that becomes optimiser steps."""
        tags = self.tags()
        limit = self.actor_infer.generating_args.max_new_tokens
        responses = [
            min(limit, tags[tag].max_tokens_per_step or limit) if tag in tags else limit
            for tag in self.train_env_manager.tags
        ]
        train = rollout_plan(self.train_env_manager, self.rollout_batch_size, self.dynamic_sampling)
        val = rollout_plan(self.val_env_manager, self.val_batch_size)
        if not self.prompts_per_step:
            return batch_plan(self, train, val, max(responses))
        prompts = self.validation_plan()
        return batch_plan(
            self,
            MixedPlan((train, self.prompt_plan(self.prompts_per_step))),
            MixedPlan((val, prompts)) if prompts else val,
            max(*responses, limit),
        )

    @property
    def groups_per_step(self) -> int:
        """Groups of a training step: levels, and prompts beside them."""
        levels = rollout_plan(self.train_env_manager, self.rollout_batch_size).groups_per_rollout
        return sum(count for _, count in levels) + self.prompts_per_step

    @property
    def groups_by_source(self) -> Mapping[str, int]:
        """Groups of a training step, by what they are of; a curriculum chooses the tags of its own."""
        manager = self.train_env_manager
        levels = dict(rollout_plan(manager, self.rollout_batch_size).groups_per_rollout)
        if manager.curriculum is not None:
            levels = {"levels": sum(levels.values())}
        return {**levels, **({PROMPTS: self.prompts_per_step} if self.prompts_per_step else {})}

    @property
    def answers_prompts(self) -> bool:
        """Whether a training step answers prompts beside its episodes."""
        return self.prompts_per_step > 0

    @property
    def opponent_roles(self) -> Mapping[str, OpponentConfig]:
        """Models that have seats of games beside the policy, by name."""
        return self.opponents

    def smallest_sizes(self) -> Iterator[tuple[str, Any]]:
        """Yield sizes with which a step has little to do and does everything: two groups of each tag, two turns."""
        tags, group = len(self.train_env_manager.tags), min(4, self.train_env_manager.group_size)
        measured = len(self.val_env_manager.tags)
        yield "rollout_batch_size", group * 2 * tags
        yield "train_env_manager.env_groups", 2 * tags
        yield "train_env_manager.group_size", group
        yield "val_batch_size", 2 * measured
        yield "val_env_manager.env_groups", 2 * measured
        yield "val_env_manager.group_size", 1
        for name, manager in (("train", self.train_env_manager), ("val", self.val_env_manager)):
            if manager.n_groups is not None:
                yield f"{name}_env_manager.n_groups", [2] * len(manager.tags)
        yield "max_actions_per_traj", 2
        yield "max_tokens_per_step", 8
        yield "actor_infer.generating_args.max_new_tokens", 8

    def worker_roles(self) -> Iterator[tuple[str, WorkerConfig]]:
        """Yield the roles that have workers of their own: models, and the graders of each domain."""
        yield from super().worker_roles()
        for domain, reward in self.rewards.items():
            yield f"rewards.{domain}", reward

    def environment_roles(self) -> Iterator[tuple[str, EnvManagerConfig]]:
        """Yield the sections whose environments have workers of their own."""
        if not self.learns_from_store:
            yield "train_env_manager", self.train_env_manager
        if self.eval_steps:
            yield "val_env_manager", self.val_env_manager

    def problems(self) -> Iterator[Problem]:
        """Yield every contradiction between keys that are each valid alone."""
        yield from super().problems()
        yield from playing_problems(self)
