"""The configuration of sampling alone: groups are played and stored, and nothing is learned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from roll.config.batch_plan import BatchPlan
from roll.config.errors import Problem
from roll.config.playing import PlayingConfig


@dataclass(frozen=True, slots=True)
class SamplePlan(BatchPlan):
    """The plan of a run that only samples: nothing is updated."""

    def describe(self) -> str:
        """Return a few lines that say what a step is made of."""
        lines = [f"rollout   {self.train.describe()}"]
        lines.append(f"evaluate  {self.val.describe() if self.val else 'never'}")
        return "\n".join([*lines, f"run       {self.max_steps} steps; nothing is learned"])


class SampleConfig(PlayingConfig):
    """The keys of a run that plays groups for others to learn from."""

    trains = False

    def plan(self) -> SamplePlan:
        """Return what a step plays."""
        plan = super().plan()
        return SamplePlan(**{each.name: getattr(plan, each.name) for each in fields(plan)})

    def problems(self) -> Iterator[Problem]:
        """Yield every contradiction between keys that are each valid alone."""
        yield from super().problems()
        if not self.trajectory_dump_steps:
            yield Problem("trajectory_dump_steps", "nothing that is sampled would be kept.", "set it to 1.", 0)
        infer = self.actor_infer.strategy_args
        if infer.starts_with_random_weights:
            path = "actor_infer.strategy_args.strategy_config.load_format"
            fix = "set load_format: auto; nothing trains here and sends weights to the engine."
            yield Problem(path, "an engine with random weights would sample.", fix)
        if self.train_env_manager.curriculum is not None:
            fix = "leave it out; train_env_manager.n_groups sets the shares of the tags."
            yield Problem("train_env_manager.curriculum", "nothing is learned, so that no tag is mastered.", fix)
        if self.prompts_per_step:
            yield Problem("prompts_per_step", "only levels are sampled.", "set it to 0.", self.prompts_per_step)
