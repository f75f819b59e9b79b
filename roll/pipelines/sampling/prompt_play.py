"""What answers prompts: with one response each, or with tools; in whichever process asks the engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from roll.common.threads import CallThreads
from roll.config import GeneratingArgs
from roll.config.prompt_keys import PromptKeys
from roll.data.prompts import Prompt
from roll.env_managers import Retries, TrajectoryEnvManager
from roll.generation import SamplingParams
from roll.pipelines.learning.algorithm_options import needs_baselines
from roll.pipelines.roles.core import Generating
from roll.pipelines.sampling.filters import domain_filter
from roll.pipelines.sampling.levels import require_turns
from roll.schedulers.answers import AnswerLimits, Grader, PromptPlay
from roll.schedulers.tasks import Play
from roll.schedulers.tool_answers import ToolPromptPlay, limits_with_tools
from roll.workers.environment import sampling_params
from roll.workers.reward_engines import is_judged_by_policy


def prompt_play(
    config: PromptKeys,
    sampler: Generating,
    graders: Mapping[str, Grader],
    generating: GeneratingArgs,
    training: bool = False,
) -> Play[Prompt]:
    """Make what answers prompts, with tools where the configuration has some.

    Args:
        config: The run.
        sampler: Text of the policy, and what asks the engines.
        graders: What grades the responses of each domain.
        generating: How to sample.
        training: Whether it is for training, where groups may be replaced by the grades of their members.
    """
    if config.tools:
        return tool_play(config, sampler, graders, generating)
    return response_play(config, sampler, graders, generating, training)


def response_play(
    config: PromptKeys,
    sampler: Generating,
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
    config: PromptKeys, sampler: Generating, graders: Mapping[str, Grader], generating: GeneratingArgs
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
        release=sampler.generation.release,
        tools=config.tools,
        use=config.tool_use,
        graders=graders,
        limits=limits,
        run_seed=config.seed,
        retries=Retries(config.max_retries, config.retry_wait),
    )
