"""Prompts of domains: the source of a run, how they are answered, and how far the run has come in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from roll.config.prompt_keys import PROMPTS, PromptKeys
from roll.data.prompts import first_rows
from roll.data.selecting import ProgressSelector
from roll.generation import Completion
from roll.pipelines.learning.expert_rows import Ungraded
from roll.pipelines.reporting.domain_metrics import domain_metrics
from roll.pipelines.reporting.metrics import prefixed
from roll.pipelines.roles.core import Sampler
from roll.pipelines.sampling.answers_elsewhere import AnswersElsewhere
from roll.pipelines.sampling.evaluation import sample_all
from roll.pipelines.sampling.filters import domain_filter
from roll.pipelines.sampling.grading import PooledGrader
from roll.pipelines.sampling.levels import generation_reports
from roll.pipelines.sampling.prompt_data import PromptData
from roll.pipelines.sampling.prompt_play import prompt_play
from roll.pipelines.sampling.stream import Source
from roll.rendering import spoken
from roll.schedulers.answers import PromptPlay, prompt_source, prompt_tasks, row_source, row_tasks
from roll.schedulers.group_stream import StepGroups
from roll.tracking import Progress
from roll.trajectories.model import TrajectoryGroup


class Prompts:
    """The prompts that a run trains on and is evaluated with.

    Args:
        config: The run.
        sampler: Policy and engine.
        data: The prompts.
        graders: What grades the responses of each domain.
        per_step: Prompts of a training step.
        beside: Groups that a step has beside them; what they are called keeps apart from the names of prompts.
        elsewhere: Whether the workers that grade answer the prompts, and the driver gets outlines.
    """

    def __init__(
        self,
        config: PromptKeys,
        sampler: Sampler,
        data: PromptData,
        graders: Mapping[str, PooledGrader],
        per_step: int,
        beside: int = 0,
        *,
        elsewhere: bool = False,
    ) -> None:
        self._config = config
        self.data = data
        self._per_step = per_step
        self._beside = beside
        self._kind = "prompt-" if beside else ""
        chosen = config.actor_train.data_args.selector
        self._selector = None if chosen is None else ProgressSelector(data.train, config.seed)
        self._sampler = sampler
        pools = {domain: grader.pool for domain, grader in graders.items()} if elsewhere else {}
        self._elsewhere = AnswersElsewhere(pools, "train") if elsewhere else None
        self._train = prompt_play(config, sampler, graders, config.actor_infer.generating_args, training=True)
        self._val = prompt_play(config, sampler, graders, config.validation_generating) if config.validation else None

    def source(self) -> Source:
        """Return the training prompts without end, in the order of the data."""
        config = self._config
        pace = (self._per_step + self._beside) / self._per_step
        prompts = self._selector or self.data.train
        named = (config.num_return_sequences_in_group, f"train-{self._kind}", pace)
        return Source(
            name=PROMPTS,
            tasks=prompt_source(prompts, *named) if self._elsewhere is None else row_source(prompts.place, *named),
            play=self._elsewhere or self._train,
            groups_per_step=self._per_step,
            group_size=config.num_return_sequences_in_group,
            keep=domain_filter(config),
            additional=config.max_additional_running_prompts if config.is_use_additional_prompts else 0,
            in_rounds=config.generate_opt_level == 0,
        )

    async def evaluate(self, progress: Progress) -> list[TrajectoryGroup]:
        """Answer every validation prompt, with the same sampling noise each time; none without ``validation``."""
        prompts = self.data.val
        if self._val is None or prompts is None:
            return []
        named = (self._config.validation_generating.num_return_sequences, f"val-{self._kind}")
        most = self._config.val_batch_size
        if self._elsewhere is None:
            return await sample_all(prompt_tasks(prompts, *named), self._val, progress, at_a_time=most)
        tasks = row_tasks(map(prompts.place, range(len(prompts))), *named)
        return await sample_all(tasks, AnswersElsewhere(self._elsewhere.pools, "val"), progress, at_a_time=most)

    async def generation_reports(self) -> list[dict[str, float]]:
        """Return what the schedulers of requests report: this process's, and those of workers that answer."""
        pools = {} if self._elsewhere is None else self._elsewhere.pools
        own = self._sampler.generation.metrics()
        return [own, *[report for pool in pools.values() for report in await generation_reports(pool)]]

    async def grade(self, prompt_ids: Sequence[int], spoken_ids: Sequence[int], group_id: str) -> float | None:
        """Return what an answer to a training prompt earns that the policy did not give.

        Args:
            prompt_ids: Tokens of the prompt.
            spoken_ids: Tokens of the answer.
            group_id: What messages call it.

        Returns:
            Its score; ``None`` where no verifier could say, or where this is no prompt of the data.
        """
        row = self._row_of.get(tuple(prompt_ids))
        if row is None or not isinstance(self._train, PromptPlay):
            return None
        completion = Completion(list(spoken_ids), [], "stop")
        response = spoken(completion, self._sampler.renderer)
        prompt = self.data.train.table[row]
        return (await self._train.grade_recorded(prompt, response, group_id, 0, completion)).score

    async def grade_elsewhere(self, answer: Ungraded) -> float | None:
        """Have a worker find out what an answer of an expert earns; ``None`` where no verifier could say."""
        assert self._elsewhere is not None, "answers are elsewhere only where prompts are"
        score: float | None = await self._elsewhere.pools[answer.domain].call("grade_expert", answer)
        return score

    @cached_property
    def _row_of(self) -> dict[tuple[int, ...], int]:
        """The first row of each prompt, by its tokens."""
        return first_rows(self.data.train.table)

    def sampled(self, rollout: StepGroups, position: int) -> dict[str, float]:
        """Return how many prompts a step used up, how far that is in the data, and what each domain earned."""
        used_up = [*rollout.groups, *(each.group for each in rollout.dropped)]
        if self._selector is not None:
            self._selector.learned(_rates(used_up))
        levels = sum(not group.is_answers for group in used_up)
        levels += sum(count for name, count in rollout.late.items() if name != PROMPTS)
        return {
            "rollout/prompts_consumed": float(rollout.consumed - levels),
            "rollout/prompts_aborted": float(rollout.aborted),
            "data/epoch": position / len(self.data.train),
            **prefixed(domain_metrics(rollout.groups), "rollout"),
        }

    def state(self, sampling: Mapping[str, Any]) -> dict[str, Any]:
        """Return which data they are and the position in them, as JSON.

        Args:
            sampling: What the sampling of the run remembers.
        """
        following = sampling[PROMPTS]["next"]
        state = {"data": self.data.train.state_dict(following)}
        if self._selector is not None:
            state["selector"] = self._selector.state_dict(min([following, *sampling[PROMPTS]["unfinished"]]))
        return state

    def load_state(self, state: Mapping[str, Any]) -> int:
        """Go on where a checkpoint stopped; returns its position.

        Raises:
            ConfigError: If its data were others.
        """
        if self._selector is not None and "selector" in state:
            self._selector.load_state_dict(state["selector"])
        return self.data.resume_position(state["data"]) if "data" in state else 0


def _rates(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Return the share of sound members that succeeded, by the key of their prompt."""
    found = {}
    for group in groups:
        sound = [member for member in group.trajectories if not member.status.is_error]
        if group.is_answers and sound:
            found[sound[0].initial_hash] = sum(member.success for member in sound) / len(sound)
    return found
