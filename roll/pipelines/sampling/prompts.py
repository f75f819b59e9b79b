"""What the RLVR pipeline samples with: prompts, rubrics, the filter of groups, the schedulers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from roll.algorithms.filters import mean_std_filter, zero_variance_filter
from roll.config import ConfigError, GeneratingArgs, Problem, RLVRConfig
from roll.config.worker import DataArgs
from roll.data.dataset import PromptDataset
from roll.data.errors import DataError
from roll.data.loading import load_prompts, validation_prompts
from roll.data.prompts import Prompt
from roll.distributed import WorkerSpec
from roll.pipelines.learning.algorithm_options import needs_baselines
from roll.pipelines.roles.core import Core, Sampler
from roll.pipelines.roles.pool import WorkerPool
from roll.pipelines.sampling.stream import Ahead, spares, stream_options
from roll.rewards.base import Grade, RewardRequest
from roll.rewards.concurrency import ConcurrencyLimit
from roll.schedulers.answers import AnswerLimits, Grader, PromptScheduler
from roll.schedulers.group_stream import GroupStream
from roll.schedulers.prompt_search import Keep
from roll.trajectories.model import TrajectoryGroup
from roll.workers.classes import worker_class
from roll.workers.environment import sampling_params
from roll.workers.loading import Text
from roll.workers.reward_engines import is_judged_by_policy

_LIMITS = {"threshold_down": "minimum_mean", "threshold_up": "maximum_mean", "std_threshold": "minimum_std"}


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
        keep: The filter of groups; ``None`` where every group is trained on.
    """

    data: RlvrData
    train: PromptScheduler
    val: PromptScheduler | None
    keep: Keep | None


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
    """Start what grades, and build the schedulers.

    Raises:
        ConfigError: If a verifier cannot be made.
    """
    graders = await start_graders(config, sampler)
    keep = group_filter(config)
    train, val = config.actor_infer.generating_args, config.val_generating
    return RlvrParts(
        data=data,
        train=prompt_scheduler(
            config, sampler, graders, train, keep is not None, needs_baselines(config), training=True
        ),
        val=prompt_scheduler(config, sampler, graders, val) if config.validation else None,
        keep=keep,
    )


async def start_graders(config: RLVRConfig, sampler: Sampler) -> dict[str, Grader]:
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


def group_filter(config: RLVRConfig) -> Keep | None:
    """Return which groups are worth training on, ``None`` if all are."""
    rules = {domain: _rule(config, domain) for domain in config.rewards}
    if not any(rules.values()):
        return None

    def keep(group: TrajectoryGroup) -> bool:
        scores = torch.tensor(group.scores)
        return bool(len(scores)) and all(rule(scores) for rule in rules[group.domain])

    return keep


def _rule(config: RLVRConfig, domain: str) -> list[Callable[[torch.Tensor], bool]]:
    """Return the conditions on the scores of a group of ``domain``."""
    rules: list[Callable[[torch.Tensor], bool]] = []
    if config.dynamic_sampling.enable:
        rules.append(lambda scores: zero_variance_filter(scores, [0] * len(scores)).kept == 1)
    chosen = config.rewards[domain].query_filter_config
    if chosen.type != "no_filter":
        limits = {_LIMITS[name]: value for name, value in chosen.filter_args.items()}
        rules.append(lambda scores: mean_std_filter(scores, [0] * len(scores), **limits).kept == 1)
    return rules


def build_ahead(config: RLVRConfig, core: Core, parts: RlvrParts) -> Ahead:
    """Return what answers prompts without end, in the order of the data."""
    prompts, size = parts.data.train, config.num_return_sequences_in_group
    most = config.rollout_batch_size * config.dynamic_sampling.max_batches
    stream = GroupStream(
        lambda position: position,
        lambda position: parts.train.answer_group(prompts, position, size),
        groups_per_step=config.rollout_batch_size,
        keep=parts.keep,
        most=None if parts.keep is None else most,
        **stream_options(config),
        pause=core.engines.pause,
        resume=core.engines.resume,
    )
    return Ahead(stream, core.engines, lambda: core.generation.sampled_tokens)


def prompt_scheduler(
    config: RLVRConfig,
    sampler: Sampler,
    graders: Mapping[str, Grader],
    generating: GeneratingArgs,
    replacing: bool = False,
    with_baselines: bool = False,
    training: bool = False,
) -> PromptScheduler:
    """Make what answers prompts.

    Args:
        config: The run.
        sampler: Policy and engine.
        graders: What grades the responses of each domain.
        generating: How to sample.
        replacing: Whether groups are replaced by the grades of their members.
        with_baselines: Whether each group has a greedy member to compare with.
        training: Whether groups have spare members.
    """
    sampling = sampling_params(generating)
    return PromptScheduler(
        generate=sampler.generation.generate,
        sampling=sampling,
        decoder=sampler.renderer,
        graders=graders,
        limits=AnswerLimits(generating.max_new_tokens, config.sequence_length),
        run_seed=config.seed,
        # Grades decide what is sampled next only where groups are replaced; elsewhere the engine need not wait. It
        # must not wait for a judge that waits for the engine.
        activity=sampler.activity if replacing and not is_judged_by_policy(config) else None,
        grade_at_end=config.generate_opt_level == 0,
        greedy=replace(sampling, temperature=0.0) if with_baselines else None,
        spares=spares(config) if training else None,
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
