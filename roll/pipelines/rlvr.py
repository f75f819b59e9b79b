"""The RLVR pipeline: prompts -> graded responses; everything after that is shared with the other pipelines."""

from __future__ import annotations

from typing import Any

from roll.config import RLVRConfig
from roll.distributed import Cluster
from roll.pipelines.checks.rlvr import check_rlvr
from roll.pipelines.learning.learner import Learner
from roll.pipelines.reporting.domain_metrics import VERIFIER, domain_metrics, evaluation_metrics
from roll.pipelines.reporting.metrics import prefixed
from roll.pipelines.rl import RLPipeline
from roll.pipelines.roles.core import build_core
from roll.pipelines.run.terminal import say
from roll.pipelines.sampling.evaluation import sample_all
from roll.pipelines.sampling.prompts import PROMPTS, RlvrParts, build_rlvr, load_data, prompt_source
from roll.pipelines.sampling.stream import Sampling
from roll.schedulers.answers import prompt_tasks
from roll.schedulers.group_streams import JointStep
from roll.tracking import RunSummary
from roll.workers.loading import load_text


def run_rlvr(config: RLVRConfig) -> RunSummary:
    """Run the RLVR pipeline to its end; see :meth:`roll.pipelines.run.life_cycle.Run.start`."""
    return RlvrPipeline.start(config)


class RlvrPipeline(RLPipeline[RLVRConfig]):
    """Answers prompts of a data set, in groups of responses to the same prompt."""

    parts: RlvrParts
    reporter = VERIFIER

    @classmethod
    def check(cls, config: RLVRConfig) -> list[str]:
        """Check what loading cannot; return what has no effect."""
        return check_rlvr(config)

    async def assemble(self, cluster: Cluster) -> None:
        """Read the prompts; start models, engines and graders."""
        text = load_text(self.config)
        prompts = load_data(self.config, text)
        if self.recoveries == 0:
            for line in prompts.train.report.lines():
                say(self.config, f"  data      {line}")
        self.core = await build_core(self.config, text, cluster)
        self.learner = Learner(self.config, self.core, self.progress)
        self.parts = await build_rlvr(self.config, self.core, prompts)
        source = prompt_source(self.config, self.parts)
        self.sampling = Sampling(
            self.config, [source], self.core.engines, lambda: self.core.generation.sampled_tokens, self.progress
        )

    def sampled(self, rollout: JointStep) -> dict[str, float]:
        """Return how many prompts were used up, and what each domain earned."""
        return {
            "rollout/prompts_consumed": float(rollout.consumed),
            "rollout/prompts_aborted": float(rollout.aborted),
            "data/epoch": self.sampling.streams.position(PROMPTS) / len(self.parts.data.train),
            **prefixed(domain_metrics(rollout.groups), "rollout"),
        }

    async def evaluate(self, step: int) -> None:
        """Answer every validation prompt, with the same sampling noise at every evaluation."""
        parts = self.parts
        if parts.val is None:
            return
        tasks = prompt_tasks(parts.data.val, self.config.val_generating.num_return_sequences, "val-")
        with self.progress.stage("eval"):
            groups = await sample_all(tasks, parts.val, self.progress, at_a_time=self.config.val_batch_size)
        self.report_evaluation(groups, step, evaluation_metrics(groups))

    def state(self) -> dict[str, Any]:
        """Return the position in the data, and which data they are, as JSON."""
        state = self.sampling.state()
        return {**super().state(), "sampling": state, "data": self.parts.data.train.state_dict(state[PROMPTS]["next"])}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on behind the last prompt that was trained on.

        Raises:
            ConfigError: If the data are not those of the checkpoint.
        """
        position = self.parts.data.resume_position(state["data"])
        # Earlier versions wrote the position only, and "ahead" where they sampled ahead.
        ahead = {PROMPTS: state["ahead"]} if "ahead" in state else None
        self.sampling.load_state(state.get("sampling", ahead), position)
