"""Prompts of domains: their data, what grades the responses, and the source of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from roll.config import ConfigError, GeneratingArgs, Problem, RLVRConfig
from roll.config.grading_keys import GradedKeys
from roll.config.worker import DataArgs
from roll.data.dataset import PromptDataset
from roll.data.errors import DataError
from roll.data.loading import load_prompts, validation_prompts
from roll.data.prompts import Prompt
from roll.distributed import WorkerSpec
from roll.pipelines.learning.algorithm_options import needs_baselines
from roll.pipelines.roles.core import Sampler
from roll.pipelines.roles.pool import WorkerPool
from roll.pipelines.sampling.filters import domain_filter
from roll.pipelines.sampling.stream import Source
from roll.rewards.base import Grade, RewardRequest
from roll.rewards.concurrency import ConcurrencyLimit
from roll.schedulers import answers
from roll.schedulers.answers import AnswerLimits, Grader, PromptPlay
from roll.workers.classes import worker_class
from roll.workers.environment import sampling_params
from roll.workers.loading import Text
from roll.workers.reward_engines import is_judged_by_policy

PROMPTS = "prompts"
"""Name of the source of prompts in checkpoints."""


@dataclass(frozen=True, slots=True)
class RlvrData:
    """The prompts of a run.

    Attributes:
        train: Training prompts, in an endless order.
        val: Validation prompts, each once.
    """

    train: PromptDataset
    val: Sequence[Prompt]

    def resume_position(self, state: Mapping[str, Any]) -> int:
        """Return the position that a checkpoint holds.

        Raises:
            ConfigError: If its data were others.
        """
        try:
            return self.train.check_state(state)
        except DataError as error:
            raise data_problem("actor_train.data_args", error) from error


@dataclass
class RlvrParts:
    """What an RLVR run works with beside its models.

    Attributes:
        data: The prompts.
        train: Answers training prompts.
        val: Answers validation prompts; ``None`` without evaluations.
    """

    data: RlvrData
    train: PromptPlay
    val: PromptPlay | None


class PooledGrader:
    """Grades in the workers of a domain; see :class:`roll.schedulers.answers.Grader`.

    Args:
        pool: The workers.
    """

    def __init__(self, pool: WorkerPool) -> None:
        self.pool = pool

    async def grade(self, request: RewardRequest) -> Grade:
        """Return the grade of one response; if its worker dies, another one grades it."""
        grade: Grade = await self.pool.call("grade", request)
        return grade


def load_data(config: RLVRConfig, text: Text) -> RlvrData:
    """Read the training and validation files.

    Raises:
        ConfigError: If they cannot be used.
    """
    data = config.actor_train.data_args
    tokens = tokenisation(config, text, config.actor_infer.generating_args)
    try:
        train = load_prompts(data, domain_tags(config), seed=config.seed, **tokens)
    except DataError as error:
        raise data_problem("actor_train.data_args", error) from error
    return RlvrData(train, eval_prompts(config, config.val_data_args, text) if config.validation else [])


def eval_prompts(config: RLVRConfig, data: DataArgs, text: Text) -> Sequence[Prompt]:
    """Read validation files.

    Raises:
        ConfigError: If they cannot be used.
    """
    try:
        return validation_prompts(data, domain_tags(config), **tokenisation(config, text, config.val_generating))
    except DataError as error:
        raise data_problem("validation.data_args", error) from error


async def build_rlvr(config: RLVRConfig, sampler: Sampler, data: RlvrData) -> RlvrParts:
    """Start what grades, and build what answers.

    Raises:
        ConfigError: If a verifier cannot be made.
    """
    graders = await start_graders(config, sampler)
    return RlvrParts(
        data=data,
        train=prompt_play(config, sampler, graders, config.actor_infer.generating_args, training=True),
        val=prompt_play(config, sampler, graders, config.val_generating) if config.validation else None,
    )


async def start_graders(config: GradedKeys, sampler: Sampler) -> dict[str, Grader]:
    """Start the reward workers of every domain.

    Raises:
        ConfigError: If a verifier cannot be made.
    """
    local = config.cluster == "local"
    limit = ConcurrencyLimit(config.max_concurrent_rewards) if local else None
    text = sampler if local else None
    graders: dict[str, Grader] = {}
    for domain in config.rewards or [""]:
        arguments = (config, domain, sampler.registered, sampler.engines.engines, text, limit)
        role = f"rewards.{domain}"
        group = await sampler.cluster.start(role, WorkerSpec(cls=worker_class(config, role), args=arguments))
        graders[domain] = PooledGrader(sampler.pool(group))
    return graders


def domain_tags(config: RLVRConfig) -> dict[str, list[str]]:
    """Return the tags of the rows of each domain."""
    return {domain: reward.tags(domain) for domain, reward in config.rewards.items()}


def data_problem(path: str, error: DataError) -> ConfigError:
    """Make a fault of the data a problem of the keys that name them."""
    place_and_fault = str(error).partition("\n")[0]
    return ConfigError([Problem(f"{path}.file_name", place_and_fault, error.fix)])


def prompt_source(config: RLVRConfig, parts: RlvrParts) -> Source:
    """Return the training prompts without end, in the order of the data."""
    return Source(
        name=PROMPTS,
        tasks=answers.prompt_source(parts.data.train, config.num_return_sequences_in_group),
        play=parts.train,
        groups_per_step=config.rollout_batch_size,
        group_size=config.num_return_sequences_in_group,
        keep=domain_filter(config),
        additional=config.max_additional_running_prompts if config.is_use_additional_prompts else 0,
        in_rounds=config.generate_opt_level == 0,
    )


def prompt_play(
    config: RLVRConfig,
    sampler: Sampler,
    graders: Mapping[str, Grader],
    generating: GeneratingArgs,
    training: bool = False,
) -> PromptPlay:
    """Make what answers prompts.

    Args:
        config: The run.
        sampler: Policy and engine.
        graders: What grades the responses of each domain.
        generating: How to sample.
        training: Whether it is for training, where groups may be replaced by the grades of their members.
    """
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


def tokenisation(config: RLVRConfig, text: Text, generating: GeneratingArgs) -> dict[str, Any]:
    """Return how a data set turns text into tokens and back, and how long a prompt may be."""
    room = config.sequence_length - generating.max_new_tokens
    return {
        "encode": text.renderer.initial_ids,
        "encode_text": lambda content: text.tokenizer.encode(content, add_special_tokens=False),
        "decode": text.tokenizer.decode,
        "prompt_length": config.prompt_length or room,
    }
