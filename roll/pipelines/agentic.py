"""The agentic pipeline: reinforcement learning from episodes of environments, and from prompts beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from roll.config import AgenticConfig
from roll.distributed import Cluster
from roll.pipelines.checks.agentic import check_agentic
from roll.pipelines.learning.elsewhere import LearnerElsewhere
from roll.pipelines.learning.learner import Learner
from roll.pipelines.playing import PlayingRun
from roll.pipelines.rl import RLPipeline
from roll.tracking import RunSummary
from roll.trajectories.model import TrajectoryGroup
from roll.workers.environment import Parcels


def run_agentic(config: AgenticConfig) -> RunSummary:
    """Run the agentic pipeline to its end; see :meth:`roll.pipelines.run.life_cycle.Run.start`."""
    return AgenticPipeline.start(config)


class AgenticPipeline(PlayingRun[AgenticConfig], RLPipeline[AgenticConfig]):
    """Learns from the scores of episodes."""

    @classmethod
    def check(cls, config: AgenticConfig) -> list[str]:
        """Check what loading cannot; return what has no effect."""
        return check_agentic(config)

    def make_learner(self) -> Learner:
        """Return what turns scores into advantages, and these into new weights."""
        manager, mode = self.config.train_env_manager, self.config.train_env_manager.sample_mode
        beside = (self.experts, self.answers, manager.compare_seats)
        return Learner(self.config, self.core, self.progress, mode, *beside)

    async def share_learning(self, cluster: Cluster) -> Parcels | None:
        """Let a worker learn where tokens are not to go through this process; return where episodes are put then."""
        if not self.config.learns_elsewhere:
            return None
        self.learner = await LearnerElsewhere.start(cluster, self.make_learner(), self.core.registered)
        return self.learner.parcels

    async def store_groups(self, groups: Sequence[TrajectoryGroup], step: int) -> Path | None:
        """Write the trajectories of a step where they are."""
        if isinstance(self.learner, LearnerElsewhere):
            return await self.learner.store(groups, step)
        return await super().store_groups(groups, step)
