"""The RLVR pipeline: prompts -> graded responses; everything after that is shared with the other pipelines."""

from __future__ import annotations

import time
from typing import Any

from roll.config import RLVRConfig
from roll.distributed import Cluster
from roll.pipelines.checks.rlvr import check_rlvr
from roll.pipelines.learning.learner import Learner
from roll.pipelines.reporting.domain_metrics import VERIFIER, domain_metrics, evaluation_metrics
from roll.pipelines.reporting.metrics import Throughput, prefixed
from roll.pipelines.rl import RLPipeline, Rollout
from roll.pipelines.roles.core import build_core
from roll.pipelines.run.start import start_run
from roll.pipelines.run.terminal import say
from roll.pipelines.sampling.prompts import RlvrParts, build_ahead, build_rlvr, load_data
from roll.schedulers.prompt_search import Collected
from roll.tracking import RunSummary
from roll.workers.loading import load_text


def run_rlvr(config: RLVRConfig) -> RunSummary:
    """Run the RLVR pipeline to its end and return what came of it.

    Raises:
        ConfigError: If the configuration asks for what is not there: a file, a verifier, a model, a checkpoint.
            Nothing has been written then.
        RunError: If the run cannot go on (nothing can be graded, a gradient is not finite).
        KeyboardInterrupt: After Ctrl-C. Of either, the last completed step is saved, and the message says how to
            continue.
    """
    return start_run(RlvrPipeline, config, check_rlvr(config))


class RlvrPipeline(RLPipeline[RLVRConfig]):
    """Answers prompts of a data set, in groups of responses to the same prompt."""

    parts: RlvrParts
    reporter = VERIFIER

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
        ahead = self.config.async_generation_ratio > 0
        self.ahead = build_ahead(self.config, self.core, self.parts) if ahead else None
        self.position = 0
        self.position_after = 0

    async def rollout(self, step: int) -> Rollout:
        """Answer prompts until ``rollout_batch_size`` groups are worth training on."""
        if self.ahead is not None:
            got, measured_ahead = await self.ahead.next(step, self.progress.rollout_progress)
            self.position_after = self.ahead.stream.position
            described = {"data/epoch": self._epoch(), **prefixed(domain_metrics(got.groups), "rollout")}
            return Rollout(got.groups, {**measured_ahead, **described})
        config, parts = self.config, self.parts
        before, begun = self.core.generation.sampled_tokens, time.perf_counter()

        def show(done: int, total: int) -> None:
            self.progress.rollout_progress(done, total, self.core.generation.sampled_tokens - before)

        collected = await parts.train.collect(
            parts.data.train,
            self.position,
            config.rollout_batch_size,
            config.num_return_sequences_in_group,
            keep=parts.keep,
            most=config.rollout_batch_size * config.dynamic_sampling.max_batches if parts.keep else None,
            additional=config.max_additional_running_prompts if config.is_use_additional_prompts else 0,
            on_progress=show,
        )
        self.position_after = self.position + collected.consumed
        self._warn(collected, step)
        measured = Throughput()
        measured.add(collected.groups, self.core.generation.sampled_tokens - before, time.perf_counter() - begun)
        metrics = {
            "rollout/prompts_consumed": float(collected.consumed),
            "rollout/groups_filtered": float(collected.filtered),
            "rollout/prompts_aborted": float(collected.aborted),
            "data/epoch": self._epoch(),
            **prefixed(domain_metrics(collected.groups), "rollout"),
            **measured.report(),
        }
        return Rollout(collected.groups, metrics)

    async def evaluate(self, step: int) -> None:
        """Answer every validation prompt, with the same sampling noise at every evaluation."""
        parts = self.parts
        if parts.val is None:
            return
        size = self.config.val_generating.num_return_sequences
        with self.progress.stage("eval"):
            groups = await parts.val.answer_all(
                parts.data.val,
                size,
                prefix="val-",
                at_a_time=self.config.val_batch_size,
                on_progress=lambda done, total: self.progress.rollout_progress(done, total, 0),
            )
        self.report_evaluation(groups, step, evaluation_metrics(groups))

    def complete(self, step: int) -> None:
        """The prompts of the step are used up."""
        self.position = self.position_after

    def state(self) -> dict[str, Any]:
        """Return the position in the data, as JSON."""
        ahead = {} if self.ahead is None else {"ahead": self.ahead.stream.state_dict()}
        return {**super().state(), "data": self.parts.data.train.state_dict(self.position), **ahead}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on behind the last prompt that was trained on.

        Raises:
            ConfigError: If the data are not those of the checkpoint.
        """
        self.position = self.position_after = self.parts.data.resume_position(state["data"])
        if self.ahead is not None:
            self.ahead.load_state(state.get("ahead"), self.position)

    def _epoch(self) -> float:
        """Return how often the data have been sampled."""
        return self.position_after / len(self.parts.data.train)

    def _warn(self, collected: Collected, step: int) -> None:
        """Say when a step has less to learn from than was asked for."""
        if collected.fallback:
            self.progress.warning(
                f"step {step}: none of {collected.consumed} groups passed the filter, so it trains on unfiltered ones. "
                "The prompts are all too easy or too hard for the policy, or the reward is always the same."
            )
        elif len(collected.groups) < self.config.rollout_batch_size:
            self.progress.warning(
                f"step {step}: only {len(collected.groups)} of {collected.consumed} groups passed the filter; "
                "dynamic_sampling.max_batches bounds how many are tried."
            )
