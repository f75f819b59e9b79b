"""The agentic pipeline: reinforcement learning from episodes of environments, and from prompts beside them."""

from __future__ import annotations

from roll.config import AgenticConfig
from roll.pipelines.checks.agentic import check_agentic
from roll.pipelines.learning.learner import Learner
from roll.pipelines.playing import PlayingRun
from roll.pipelines.rl import RLPipeline
from roll.tracking import RunSummary


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
