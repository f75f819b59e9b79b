"""What runs over prompts have in common: prompts -> responses, graded where there are rewards."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

from roll.config.answering import AnsweringConfig
from roll.distributed import Cluster
from roll.pipelines.reporting.domain_metrics import evaluation_metrics
from roll.pipelines.reporting.metrics import generation_metrics
from roll.pipelines.roles.core import build_core
from roll.pipelines.sampled import Learns, SampledRun
from roll.pipelines.sampling.grading import start_graders
from roll.pipelines.sampling.prompt_data import load_data
from roll.pipelines.sampling.prompts import PROMPTS, Prompts
from roll.pipelines.sampling.stream import load_state
from roll.schedulers.group_stream import StepGroups
from roll.workers.loading import load_text

Config = TypeVar("Config", bound=AnsweringConfig)


class AnsweringRun(SampledRun[Config]):
    """Answers prompts of a data set, in groups of responses to the same prompt."""

    prompts: Prompts

    @abstractmethod
    def make_learner(self) -> Learns:
        """Return what learns from the responses, with the models of ``core``."""

    async def assemble(self, cluster: Cluster) -> None:
        """Read the prompts; start models, engines and graders."""
        config = self.config
        text = load_text(config)
        data = load_data(config, text)
        self.introduce_data(data)
        self.read_data(text)
        self.core = await build_core(config, text, cluster)
        self.learner = self.make_learner()
        elsewhere = await self.share_learning(cluster, data)
        graders = await start_graders(config, self.core, elsewhere)
        per_step = config.rollout_batch_size
        self.prompts = Prompts(config, self.core, data, graders, per_step, elsewhere=elsewhere is not None)
        self.give_groups([self.prompts.source()])

    async def measure(self) -> dict[str, float]:
        """Return what engines and workers report of the step; workers that answer ask the engines too."""
        return {**generation_metrics(await self.prompts.generation_reports()), **self.core.cluster_metrics()}

    def sampled(self, rollout: StepGroups) -> dict[str, float]:
        """Return how many prompts were used up, and what each domain earned."""
        if self.config.learns_from_store:
            return {}
        return self.prompts.sampled(rollout, self.stream.position(PROMPTS))

    async def evaluate(self, step: int) -> None:
        """Answer every validation prompt."""
        if self.config.validation is None:
            return
        with self.progress.stage("eval"):
            groups = await self.prompts.evaluate(self.progress)
        await self.report_evaluation(groups, step, evaluation_metrics(groups))

    def state(self) -> dict[str, Any]:
        """Return the position in the data, and which data they are, as JSON."""
        sampling = self.stream.state_dict()
        answered = {} if self.config.learns_from_store else self.prompts.state(sampling)
        return {**super().state(), "sampling": sampling, **answered}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on behind the last prompt that was trained on.

        Raises:
            ConfigError: If the data are not those of the checkpoint.
        """
        position = self.prompts.load_state(state)
        # Earlier versions wrote the position only, and "ahead" where they sampled ahead.
        ahead = {PROMPTS: state["ahead"]} if "ahead" in state else None
        load_state(self.stream, state.get("sampling", ahead), position)
