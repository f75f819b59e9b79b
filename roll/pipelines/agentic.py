"""The agentic pipeline: environments -> trajectories; everything after that is shared with the other pipelines."""

from __future__ import annotations

import time
from typing import Any

from roll.config import AgenticConfig
from roll.config.batch_plan import rollout_plan
from roll.distributed import Cluster
from roll.pipelines.checks.agentic import check_agentic
from roll.pipelines.learning.algorithm_options import needs_baselines
from roll.pipelines.learning.learner import Learner
from roll.pipelines.reporting.metrics import Throughput, generation_metrics, rollout_metrics
from roll.pipelines.rl import RLPipeline, Rollout
from roll.pipelines.roles.core import build_core
from roll.pipelines.run.start import start_run
from roll.pipelines.sampling.filters import GroupSearch
from roll.pipelines.sampling.levels import TRAIN, VAL, Environments, build_ahead, require_turns, start_environments
from roll.pipelines.sampling.stream import spares
from roll.schedulers.groups import GroupSpec, RolloutScheduler, group_specs
from roll.tracking import RunSummary
from roll.trajectories.model import TrajectoryGroup
from roll.workers.loading import load_text

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
    return start_run(AgenticPipeline, config, check_agentic(config))


class AgenticPipeline(RLPipeline[AgenticConfig]):
    """Plays episodes of environments, in groups that share a level."""

    async def assemble(self, cluster: Cluster) -> None:
        """Start models, engines and environments."""
        config = self.config
        self.core = await build_core(config, require_turns(config, load_text(config)), cluster)
        self.learner = Learner(config, self.core, self.progress, config.train_env_manager.sample_mode)
        self.environments = await start_environments(config, self.core, TRAIN)
        self.val_environments = await start_environments(config, self.core, VAL) if config.eval_steps else None
        ahead = config.async_generation_ratio > 0
        self.ahead = build_ahead(config, self.core, self.environments) if ahead else None
        self.played = rollout_plan(config.train_env_manager, config.rollout_batch_size, config.dynamic_sampling)
        self.position = 0
        self.position_after = 0

    async def rollout(self, step: int) -> Rollout:
        """Play the groups of ``step``: their numbers go on from those of the step before, so levels never repeat.

        With ``dynamic_sampling``, groups whose scores are all equal are replaced by groups of further levels.
        """
        if self.ahead is not None:
            got, measured = await self.ahead.next(step, self.progress.rollout_progress)
            self.position_after = self.ahead.stream.position
            return Rollout(got.groups, measured)
        search = GroupSearch(self.played.groups_per_rollout, most=self.played.most)
        position, metrics = self.position, Throughput()
        while missing := search.missing():
            specs = group_specs(missing, self.played.group_size, self.config.seed, "train-", first=position)
            played = await self._play(self.environments, specs, needs_baselines(self.config), metrics)
            position += len(played)
            search.add(played)
        self.position_after = position
        if search.warning:
            self.progress.warning(f"step {step}: {search.warning}")
        return Rollout(search.groups(), {**search.metrics(), **metrics.report()})

    def complete(self, step: int) -> None:
        """The levels of the step are used up."""
        self.position = self.position_after

    async def measure(self) -> dict[str, float]:
        """Return what engines and workers report of the step; here the workers with environments ask the engines."""
        return {**generation_metrics(await self.environments.generation_reports()), **self.core.cluster_metrics()}

    def state(self) -> dict[str, Any]:
        """Return which groups were played, as JSON."""
        ahead = {} if self.ahead is None else {"ahead": self.ahead.stream.state_dict()}
        return {**super().state(), "groups_played": self.position, **ahead}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on with the level behind the last one that was played."""
        self.position = self.position_after = int(state["groups_played"])
        if self.ahead is not None:
            self.ahead.load_state(state.get("ahead"), self.position)

    async def evaluate(self, step: int) -> None:
        """Play the validation levels, the same at every evaluation."""
        if self.val_environments is None:
            return
        played = rollout_plan(self.config.val_env_manager, self.config.val_batch_size)
        counts, size, seed = played.groups_per_rollout, played.group_size, self.config.seed
        with self.progress.stage("eval"):
            specs = group_specs(counts, size, seed, "val-", offset=VALIDATION_OFFSET)
            groups = await self._play(self.val_environments, specs)
        self.report_evaluation(groups, step, rollout_metrics(groups))

    async def _play(
        self,
        environments: Environments,
        specs: list[GroupSpec],
        with_baselines: bool = False,
        measured: Throughput | None = None,
    ) -> list[TrajectoryGroup]:
        """Play groups, showing progress."""
        before, begun = environments.sampled_tokens, time.perf_counter()

        def show(done: int, total: int) -> None:
            self.progress.rollout_progress(done, total, environments.sampled_tokens - before)

        scheduler = RolloutScheduler(
            play=environments.play,
            run_seed=self.config.seed,
            with_baselines=with_baselines,
            spares=spares(self.config) if environments is self.environments else None,
        )
        groups = await scheduler.collect(specs, show)
        if measured is not None:
            measured.add(groups, environments.sampled_tokens - before, time.perf_counter() - begun)
        return groups
