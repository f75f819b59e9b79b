"""Prompts of domains: the source of a run, how they are answered, and how far the run has come in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from roll.common.threads import CallThreads
from roll.config import GeneratingArgs
from roll.config.prompt_keys import PROMPTS, PromptKeys
from roll.data.prompts import Prompt
from roll.data.selecting import ProgressSelector
from roll.env_managers import Retries, TrajectoryEnvManager
from roll.generation import Completion, SamplingParams
from roll.pipelines.learning.algorithm_options import needs_baselines
from roll.pipelines.reporting.domain_metrics import domain_metrics
from roll.pipelines.reporting.metrics import prefixed
from roll.pipelines.roles.core import Sampler
from roll.pipelines.sampling.evaluation import sample_all
from roll.pipelines.sampling.filters import domain_filter
from roll.pipelines.sampling.levels import require_turns
from roll.pipelines.sampling.prompt_data import PromptData
from roll.pipelines.sampling.stream import Source
from roll.rendering import spoken
from roll.schedulers.answers import AnswerLimits, Grader, PromptPlay, prompt_source, prompt_tasks
from roll.schedulers.group_stream import StepGroups
from roll.schedulers.tasks import Play
from roll.schedulers.tool_answers import ToolPromptPlay, limits_with_tools
from roll.tracking import Progress
from roll.trajectories.model import TrajectoryGroup
from roll.workers.environment import sampling_params
from roll.workers.reward_engines import is_judged_by_policy


class Prompts:
    """The prompts that a run trains on and is evaluated with.

    Args:
        config: The run.
        sampler: Policy and engine.
        data: The prompts.
        graders: What grades the responses of each domain.
        per_step: Prompts of a training step.
        beside: Groups that a step has beside them; what they are called keeps apart from the names of prompts.
    """

    def __init__(
        self,
        config: PromptKeys,
        sampler: Sampler,
        data: PromptData,
        graders: Mapping[str, Grader],
        per_step: int,
        beside: int = 0,
    ) -> None:
        self._config = config
        self.data = data
        self._per_step = per_step
        self._beside = beside
        self._kind = "prompt-" if beside else ""
        chosen = config.actor_train.data_args.selector
        self._selector = None if chosen is None else ProgressSelector(data.train, config.seed)
        self._decoder = sampler.renderer
        self._train = prompt_play(config, sampler, graders, config.actor_infer.generating_args, training=True)
        self._val = prompt_play(config, sampler, graders, config.validation_generating) if config.validation else None

    def source(self) -> Source:
        """Return the training prompts without end, in the order of the data."""
        config = self._config
        pace = (self._per_step + self._beside) / self._per_step
        return Source(
            name=PROMPTS,
            tasks=prompt_source(
                self._selector or self.data.train, config.num_return_sequences_in_group, f"train-{self._kind}", pace
            ),
            play=self._train,
            groups_per_step=self._per_step,
            group_size=config.num_return_sequences_in_group,
            keep=domain_filter(config),
            additional=config.max_additional_running_prompts if config.is_use_additional_prompts else 0,
            in_rounds=config.generate_opt_level == 0,
        )

    async def evaluate(self, progress: Progress) -> list[TrajectoryGroup]:
        """Answer every validation prompt, with the same sampling noise each time; none without ``validation``."""
        if self._val is None:
            return []
        size = self._config.validation_generating.num_return_sequences
        tasks = prompt_tasks(self.data.val, size, f"val-{self._kind}")
        return await sample_all(tasks, self._val, progress, at_a_time=self._config.val_batch_size)

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
        response = spoken(completion, self._decoder)
        prompt = self.data.train.table[row]
        return (await self._train.grade_recorded(prompt, response, group_id, 0, completion)).score

    @cached_property
    def _row_of(self) -> dict[tuple[int, ...], int]:
        """The first row of each prompt, by its tokens."""
        table = self.data.train.table
        return {tuple(table[row].prompt_ids): row for row in reversed(range(len(table)))}

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


def prompt_play(
    config: PromptKeys,
    sampler: Sampler,
    graders: Mapping[str, Grader],
    generating: GeneratingArgs,
    training: bool = False,
) -> Play[Prompt]:
    """Make what answers prompts, with tools where the configuration has some.

    Args:
        config: The run.
        sampler: Policy and engine.
        graders: What grades the responses of each domain.
        generating: How to sample.
        training: Whether it is for training, where groups may be replaced by the grades of their members.
    """
    if config.tools:
        return tool_play(config, sampler, graders, generating)
    return response_play(config, sampler, graders, generating, training)


def response_play(
    config: PromptKeys,
    sampler: Sampler,
    graders: Mapping[str, Grader],
    generating: GeneratingArgs,
    training: bool = False,
) -> PromptPlay:
    """Make what answers prompts with one response, or grades one that was recorded; arguments as above."""
    sampling = sampling_params(generating)
    # Grades decide what is sampled next only where groups are replaced; elsewhere the engine need not wait. It must not
    # wait for a judge that waits for the engine.
    quiet = training and domain_filter(config) is not None and not is_judged_by_policy(config)
    synchronous = config.async_generation_ratio == 0
    return PromptPlay(
        generate=sampler.generation.generate,
        sampling=sampling,
        decoder=sampler.renderer,
        graders=graders,
        limits=AnswerLimits(generating.max_new_tokens, config.sequence_length),
        run_seed=config.seed,
        activity=sampler.activity if quiet else None,
        grade_at_end=training and synchronous and config.generate_opt_level == 0,
        greedy=replace(sampling, temperature=0.0) if training and needs_baselines(config) else None,
    )


def tool_play(
    config: PromptKeys, sampler: Sampler, graders: Mapping[str, Grader], generating: GeneratingArgs
) -> ToolPromptPlay:
    """Make what answers prompts with tools.

    Raises:
        ConfigError: The chat template cannot hold conversations of several turns.
    """
    renderer = require_turns(config, sampler).renderer
    limits = AnswerLimits(generating.max_new_tokens, config.sequence_length)
    sampling = sampling_params(generating)
    threads = CallThreads()

    def manager(params: SamplingParams) -> TrajectoryEnvManager:
        return TrajectoryEnvManager(
            renderer=renderer,
            generate=sampler.generation.generate,
            limits=limits_with_tools(limits, config.tool_use),
            sampling=params,
            threads=threads,
            activity=sampler.activity,
        )

    return ToolPromptPlay(
        manager=manager(sampling),
        greedy=manager(replace(sampling, temperature=0.0)),
        tools=config.tools,
        use=config.tool_use,
        graders=graders,
        limits=limits,
        run_seed=config.seed,
        retries=Retries(config.max_retries, config.retry_wait),
    )
