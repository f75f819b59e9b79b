"""The agentic pipeline: environments -> trajectories; everything after that is shared with the other pipelines."""

from __future__ import annotations

import time
from typing import Any

from roll.config import AgenticConfig
from roll.config.batch_plan import rollout_plan
from roll.pipelines.agentic_parts import build_rollouts
from roll.pipelines.base import Pipeline, Rollout, run_pipeline
from roll.pipelines.core import build_core, load_text
from roll.pipelines.group_search import GroupSearch
from roll.pipelines.learner import Learner
from roll.pipelines.metrics import Throughput, rollout_metrics
from roll.pipelines.preflight.agentic import check_agentic
from roll.schedulers.rollout import RolloutScheduler, group_specs
from roll.tracking import RunSummary
from roll.trajectories.model import TrajectoryGroup

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
        config = self.config
        self.core = build_core(config, load_text(config))
        self.learner = Learner(config, self.core, self.progress, config.train_env_manager.sample_mode)
        self.rollouts = build_rollouts(config, self.core)
        self.played = rollout_plan(config.train_env_manager, config.rollout_batch_size, config.dynamic_sampling)
        self.position = 0
        self.position_after = 0

    async def rollout(self, step: int) -> Rollout:
        """Play the groups of ``step``: their numbers go on from those of the step before, so levels never repeat.

        With ``dynamic_sampling``, groups whose scores are all equal are replaced by groups of further levels.
        """
        search = GroupSearch(self.played.groups_per_rollout, most=self.played.most)
        position, metrics = self.position, Throughput()
        while missing := search.missing():
            played = await self._play(self.rollouts.train, missing, self.played.group_size, "train-", position, metrics)
            position += len(played)
            search.add(played)
        self.position_after = position
        if search.warning:
            self.progress.warning(f"step {step}: {search.warning}")
        return Rollout(search.groups(), {**search.metrics(), **metrics.report()})

    def complete(self, step: int) -> None:
        """The levels of the step are used up."""
        self.position = self.position_after

    def state(self) -> dict[str, Any]:
        """Return how many groups were played, as JSON."""
        return {"groups_played": self.position}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on with the level behind the last one that was played."""
        self.position = self.position_after = int(state["groups_played"])

    async def evaluate(self, step: int) -> None:
        """Play the validation levels, the same at every evaluation."""
        played = rollout_plan(self.config.val_env_manager, self.config.val_batch_size)
        with self.progress.stage("eval"):
            groups = await self._play(
                self.rollouts.val, played.groups_per_rollout, played.group_size, "val-", 0, offset=VALIDATION_OFFSET
            )
        self.report_evaluation(groups, step, rollout_metrics(groups))

    async def close(self) -> None:
        """Stop the threads of the environments."""
        self.rollouts.close()

    async def _play(
        self,
        scheduler: RolloutScheduler,
        counts: list[tuple[str, int]],
        size: int,
        prefix: str,
        first: int,
        measured: Throughput | None = None,
        offset: int = 0,
    ) -> list[TrajectoryGroup]:
        """Play so many groups of each tag, showing progress."""
        specs = group_specs(counts, size, self.config.seed, prefix, first=first, offset=offset)
        before, begun = self.core.generation.sampled_tokens, time.perf_counter()

        def show(done: int, total: int) -> None:
            self.progress.rollout_progress(done, total, self.core.generation.sampled_tokens - before)

        groups = await scheduler.collect(specs, show)
        if measured is not None:
            measured.add(groups, self.core.generation.sampled_tokens - before, time.perf_counter() - begun)
        return groups
