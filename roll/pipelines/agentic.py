"""The agentic pipeline: environments -> trajectories; everything after that is shared with the other pipelines."""

from __future__ import annotations

import time

from roll.config import AgenticConfig
from roll.config.batch_plan import RolloutPlan, rollout_plan
from roll.pipelines.agentic_parts import build_rollouts
from roll.pipelines.base import Pipeline, Rollout, run_pipeline
from roll.pipelines.core import build_core, load_text
from roll.pipelines.learner import Learner
from roll.pipelines.metrics import rollout_metrics, throughput
from roll.pipelines.preflight.agentic import check_agentic
from roll.schedulers.rollout import RolloutScheduler, group_specs
from roll.tracking import RunSummary

VALIDATION_OFFSET = 1 << 40
"""Added to the numbers of validation groups: no training step ever reaches these seeds."""


def run_agentic(config: AgenticConfig) -> RunSummary:
    """Run the agentic pipeline to its end and return what came of it.

    Raises:
        ConfigError: If the configuration asks for what is not there: a tag, a model, a checkpoint, machinery that this
            version does not have. Nothing has been written then.
        RunError: If the run cannot go on (every environment fails, a gradient is not finite).
        KeyboardInterrupt: After Ctrl-C. Of either, the last completed step is saved, and the message says how to
            continue.
    """
    return run_pipeline(AgenticPipeline, config, check_agentic(config))


class AgenticPipeline(Pipeline[AgenticConfig]):
    """Plays episodes of environments, in groups that share a level."""

    def assemble(self) -> None:
        """Build models, engine, and the schedulers of training and evaluation."""
        self.core = build_core(self.config, load_text(self.config))
        self.learner = Learner(self.config, self.core, self.progress, self.config.train_env_manager.sample_mode)
        self.rollouts = build_rollouts(self.config, self.core)

    async def rollout(self, step: int) -> Rollout:
        """Play the groups of ``step``: their numbers go on from those of the step before, so levels never repeat."""
        played = rollout_plan(self.config.train_env_manager, self.config.rollout_batch_size)
        per_step = sum(count for _, count in played.groups_per_rollout)
        return await self._play(self.rollouts.train, played, "train-", first=(step - 1) * per_step)

    async def evaluate(self, step: int) -> None:
        """Play the validation levels, the same at every evaluation."""
        played = rollout_plan(self.config.val_env_manager, self.config.val_batch_size)
        with self.progress.stage("eval"):
            groups = (await self._play(self.rollouts.val, played, "val-", offset=VALIDATION_OFFSET)).groups
        self.report_evaluation(groups, step, rollout_metrics(groups))

    async def close(self) -> None:
        """Stop the threads of the environments."""
        self.rollouts.close()

    async def _play(
        self, scheduler: RolloutScheduler, played: RolloutPlan, prefix: str, first: int = 0, offset: int = 0
    ) -> Rollout:
        """Play the groups of one rollout, showing progress."""
        specs = group_specs(
            played.groups_per_rollout, played.group_size, self.config.seed, prefix, first=first, offset=offset
        )
        before, begun = self.core.generation.sampled_tokens, time.perf_counter()

        def show(done: int, total: int) -> None:
            self.progress.rollout_progress(done, total, self.core.generation.sampled_tokens - before)

        groups = await scheduler.collect(specs, show)
        sampled = self.core.generation.sampled_tokens - before
        return Rollout(groups, throughput(groups, sampled, time.perf_counter() - begun))
