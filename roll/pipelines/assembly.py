"""Builds the parts of an agentic run from its configuration. Everything that is constructed is constructed here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from roll.algorithms.kl import KLController, kl_controller
from roll.config import AgenticConfig, ConfigError, EnvManagerConfig, GeneratingArgs, Problem, plan
from roll.env_managers.records import EnvManagerLimits, Timeouts
from roll.env_managers.threads import EnvThreads
from roll.env_managers.trajectory import TrajectoryEnvManager
from roll.envs import Tag, get_tag
from roll.models.loading import ModelNotFoundError, load_model, load_tokenizer
from roll.pipelines.preflight import environment, manager_class, templates
from roll.rendering.chat import ChatRenderer
from roll.schedulers.generation import GenerationScheduler
from roll.schedulers.rollout import RolloutScheduler
from roll.strategies.activity import Activity
from roll.strategies.base import GenerationStrategy, SamplingParams, TrainStrategy
from roll.strategies.fsdp_train import FsdpTrainStrategy, TrainOptions
from roll.strategies.hf_infer import HfInferStrategy
from roll.strategies.scoring import Scorer

ATTENTION = {"auto": None, "eager": "eager", "sdpa": "sdpa", "fa2": "flash_attention_2"}
DEFAULT_TURNS = 10


@dataclass
class Parts:
    """What an agentic run works with."""

    tokenizer: PreTrainedTokenizerBase
    trainer: TrainStrategy
    engine: GenerationStrategy
    reference: Scorer | None
    kl_controller: KLController | None
    generation: GenerationScheduler
    train_rollouts: RolloutScheduler
    val_rollouts: RolloutScheduler
    threads: list[EnvThreads]

    async def close(self) -> None:
        """Stop the engine and the environment threads."""
        await self.engine.close()
        for pool in self.threads:
            pool.close()


def assemble(config: AgenticConfig) -> Parts:
    """Build every part of a configuration that :func:`roll.pipelines.preflight.check` has passed.

    Raises:
        ConfigError: If a model cannot be loaded.
    """
    with _readable(config, "actor_train"):
        tokenizer = load_tokenizer(config.model_path("actor_train"))
    renderer = ChatRenderer(tokenizer)
    model = _load(config, "actor_train")
    trainer = build_trainer(config, model)
    activity = Activity() if config.deterministic else None
    engine = HfInferStrategy(
        model,
        max_slots=config.max_running_requests,
        max_length=config.sequence_length,
        activity=activity,
    )
    generation = GenerationScheduler(engine)
    threads = [EnvThreads()]
    rollouts = partial(
        _rollouts, config=config, renderer=renderer, generation=generation, threads=threads, activity=activity
    )
    return Parts(
        tokenizer=tokenizer,
        trainer=trainer,
        engine=engine,
        reference=_reference(config),
        kl_controller=_kl_controller(config),
        generation=generation,
        train_rollouts=rollouts(config.train_env_manager, config.actor_infer.generating_args),
        val_rollouts=rollouts(config.val_env_manager, config.val_generating),
        threads=threads,
    )


def build_trainer(config: AgenticConfig, model: PreTrainedModel) -> FsdpTrainStrategy:
    """Make the train strategy of ``actor_train``."""
    arguments = config.actor_train.training_args
    total = plan(config).total_optimizer_steps
    budget = arguments.max_tokens_per_microbatch
    options = TrainOptions(
        learning_rate=arguments.learning_rate,
        weight_decay=arguments.weight_decay,
        betas=(arguments.adam_beta1, arguments.adam_beta2),
        epsilon=arguments.adam_epsilon,
        max_grad_norm=config.max_grad_norm,
        lr_scheduler_type=arguments.lr_scheduler_type,
        warmup_steps=arguments.warmup_steps or int(arguments.warmup_ratio * total),
        total_steps=total,
        max_tokens_per_microbatch=budget,
        max_samples_per_microbatch=None if budget else arguments.per_device_train_batch_size,
        mixed_precision=config.actor_train.model_args.dtype == "bf16",
        gradient_checkpointing=not config.actor_train.model_args.disable_gradient_checkpointing,
        temperature=config.actor_infer.generating_args.temperature or 1.0,
    )
    return FsdpTrainStrategy(model, options)


def device() -> torch.device:
    """Return the first accelerator, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _load(config: AgenticConfig, role: str) -> PreTrainedModel:
    arguments = (getattr(config, role) or config.actor_train).model_args
    with _readable(config, role):
        return load_model(
            config.model_path(role),
            # bf16 is mixed precision: fp32 weights and optimiser states, bf16 arithmetic.
            dtype="fp32" if arguments.dtype == "bf16" else arguments.dtype,
            device=str(device()),
            attn_implementation=ATTENTION[arguments.attn_implementation],
        )


@contextmanager
def _readable(config: AgenticConfig, role: str) -> Iterator[None]:
    """Make a model that is not there a problem of the key that names it."""
    try:
        yield
    except ModelNotFoundError as error:
        worker = getattr(config, role)
        named = worker is not None and worker.model_args.model_name_or_path is not None
        key = f"{role}.model_args.model_name_or_path" if named else "pretrain"
        message, _, fix = str(error).partition(" Use ")
        raise ConfigError([Problem(key, message, f"use {fix}", config.model_path(role))]) from error


def _reference(config: AgenticConfig) -> Scorer | None:
    if not config.needs_reference:
        return None
    model = _load(config, "reference").requires_grad_(False)
    budget = config.actor_train.training_args.max_tokens_per_microbatch
    return Scorer(
        model,
        temperature=config.actor_infer.generating_args.temperature or 1.0,
        max_tokens_per_microbatch=budget,
        max_samples_per_microbatch=None if budget else (config.reference or config.actor_train).infer_batch_size,
    )


def _kl_controller(config: AgenticConfig) -> KLController | None:
    if config.kl_in_reward == "off":
        return None
    if config.target_kl is None:
        return kl_controller("fixed", config.init_kl_coef)
    return kl_controller("adaptive", config.init_kl_coef, target=config.target_kl, horizon=config.kl_horizon)


def _rollouts(
    manager: EnvManagerConfig,
    generating: GeneratingArgs,
    *,
    config: AgenticConfig,
    renderer: ChatRenderer,
    generation: GenerationScheduler,
    threads: list[EnvThreads],
    activity: Activity | None,
) -> RolloutScheduler:
    sampling = SamplingParams(
        max_new_tokens=generating.max_new_tokens,
        temperature=generating.temperature,
        top_p=generating.top_p,
        top_k=generating.top_k,
    )
    managers: Mapping[str, TrajectoryEnvManager] = {
        name: manager_class(get_tag(name))(
            renderer=renderer,
            generate=generation.generator(sampling),
            limits=_limits(get_tag(name), manager, config.sequence_length, generating.max_new_tokens),
            templates=templates(get_tag(name)),
            timeouts=Timeouts(manager.timeouts.reset, manager.timeouts.step, manager.timeouts.generate),
            threads=_threads(config, name, threads),
            activity=activity,
        )
        for name in manager.tags
    }
    return RolloutScheduler(
        managers, {name: environment(name, manager) for name in manager.tags}, generation, config.seed
    )


def _limits(tag: Tag, manager: EnvManagerConfig, sequence_length: int, max_new_tokens: int) -> EnvManagerLimits:
    turns = manager.max_steps or tag.max_steps or DEFAULT_TURNS
    return EnvManagerLimits(turns, sequence_length, max_new_tokens, tag.max_tokens_per_step)


def _threads(config: AgenticConfig, name: str, pools: list[EnvThreads]) -> EnvThreads:
    """Return the shared pool, or one of its own for a tag whose environments bear only so many calls at a time."""
    tag = config.tags().get(name)
    most = 0 if tag is None else 1 if tag.use_thread_lock else tag.max_env_step_concurrent
    if most:
        pools.append(EnvThreads(most))
        return pools[-1]
    return pools[0]
