"""The agentic pipeline: environments -> trajectories; everything after that is shared with the other pipelines."""

from __future__ import annotations

from typing import Any

from roll.config import AgenticConfig
from roll.distributed import Cluster
from roll.pipelines.checks.agentic import check_agentic
from roll.pipelines.learning.learner import Learner
from roll.pipelines.reporting.metrics import generation_metrics, rollout_metrics
from roll.pipelines.rl import RLPipeline
from roll.pipelines.roles.core import build_core
from roll.pipelines.sampling.evaluation import sample_all
from roll.pipelines.sampling.grading import GradedPlay, graders_by_tag
from roll.pipelines.sampling.levels import (
    TRAIN,
    VAL,
    Environments,
    level_sources,
    require_turns,
    start_environments,
    validation_levels,
)
from roll.pipelines.sampling.prompts import start_graders
from roll.pipelines.sampling.stream import Sampling
from roll.schedulers.groups import require_some
from roll.schedulers.levels import Level, LevelPlay
from roll.schedulers.tasks import Play
from roll.tracking import RunSummary
from roll.workers.loading import load_text


def run_agentic(config: AgenticConfig) -> RunSummary:
    """Run the agentic pipeline to its end; see :meth:`roll.pipelines.run.life_cycle.Run.start`."""
    return AgenticPipeline.start(config)


class AgenticPipeline(RLPipeline[AgenticConfig]):
    """Plays episodes of environments, in groups that share a level."""

    @classmethod
    def check(cls, config: AgenticConfig) -> list[str]:
        """Check what loading cannot; return what has no effect."""
        return check_agentic(config)

    async def assemble(self, cluster: Cluster) -> None:
        """Start models, engines and environments."""
        config = self.config
        self.core = await build_core(config, require_turns(config, load_text(config)), cluster)
        self.learner = Learner(config, self.core, self.progress, config.train_env_manager.sample_mode)
        self.environments = await start_environments(config, self.core, TRAIN)
        self.val_environments = await start_environments(config, self.core, VAL) if config.eval_steps else None
        graders = await start_graders(config, self.core) if config.rewards else {}
        self.graders = graders_by_tag(config, graders)
        sources = level_sources(config, self._play(self.environments))
        self.sampling = Sampling(
            config, sources, self.core.engines, lambda: self.environments.sampled_tokens, self.progress
        )

    async def measure(self) -> dict[str, float]:
        """Return what engines and workers report of the step; here the workers with environments ask the engines."""
        return {**generation_metrics(await self.environments.generation_reports()), **self.core.cluster_metrics()}

    def state(self) -> dict[str, Any]:
        """Return which levels were played, as JSON."""
        return {**super().state(), "sampling": self.sampling.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on with the level behind the last one that was played."""
        # Earlier versions wrote "groups_played", and "ahead" where they sampled ahead.
        self.sampling.load_state(state.get("sampling", state.get("ahead")), int(state.get("groups_played", 0)))

    async def evaluate(self, step: int) -> None:
        """Play the validation levels, the same at every evaluation."""
        environments = self.val_environments
        if environments is None:
            return
        with self.progress.stage("eval"):
            groups = await sample_all(
                validation_levels(self.config),
                self._play(environments),
                self.progress,
                sampled_tokens=lambda: environments.sampled_tokens,
            )
            require_some(groups)
        self.report_evaluation(groups, step, rollout_metrics(groups))

    def _play(self, environments: Environments) -> Play[Level]:
        play = LevelPlay(environments.play, self.config.seed)
        return GradedPlay(play, self.graders) if self.graders else play
