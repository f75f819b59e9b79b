"""The RLVR pipeline: prompts -> graded responses; everything after that is shared with the other pipelines."""

from __future__ import annotations

from collections.abc import Sequence

from roll.config import RLVRConfig
from roll.pipelines.answering import AnsweringRun
from roll.pipelines.checks.rlvr import check_rlvr
from roll.pipelines.learning.elsewhere import LearnerElsewhere
from roll.pipelines.learning.learner import Learner
from roll.pipelines.rl import RLPipeline
from roll.pipelines.sampling.expert_answers import ExpertAnswer
from roll.tracking import RunSummary
from roll.trajectories.model import TrajectoryGroup


def run_rlvr(config: RLVRConfig) -> RunSummary:
    """Run the RLVR pipeline to its end; see :meth:`roll.pipelines.run.life_cycle.Run.start`."""
    return RlvrPipeline.start(config)


class RlvrPipeline(AnsweringRun[RLVRConfig], RLPipeline[RLVRConfig]):
    """Learns from the grades of responses."""

    @classmethod
    def check(cls, config: RLVRConfig) -> list[str]:
        """Check what loading cannot; return what has no effect."""
        return check_rlvr(config)

    async def before_batch(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Have graded what experts answered to the prompts of the groups, where nobody said what that is worth."""
        if self.answers is None:
            return
        if isinstance(self.learner, LearnerElsewhere):
            await self.learner.grade_answers(groups, self.prompts.grade_elsewhere)
        else:
            await self.answers.grade(groups, self._grade)

    async def _grade(self, answer: ExpertAnswer, group: TrajectoryGroup) -> float | None:
        return await self.prompts.grade(answer.prompt, answer.spoken, f"{group.group_id}/expert")

    def make_learner(self) -> Learner:
        """Return what turns grades into advantages, and these into new weights."""
        return Learner(self.config, self.core, self.progress, experts=self.experts, answers=self.answers)

    def domains(self) -> dict[str, str]:
        """Return the domain of each tag of prompts."""
        return {tag: name for name, reward in self.config.rewards.items() for tag in reward.tags(name)}
