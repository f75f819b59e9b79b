"""Strategies by name: what a role's configuration asks for. Heavy packages load when they are chosen."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist
from transformers import PreTrainedModel

from roll.config import ConfigError, Problem, RowDistillConfig, SamplingConfig, require_available
from roll.config.taught import TaughtConfig
from roll.config.trainer_keys import TrainerKeys
from roll.config.worker import TrainWorkerConfig, WorkerConfig
from roll.generation import Activity
from roll.models.loading import load_tokenizer
from roll.models.lora import add_adapters
from roll.strategies import STRATEGIES, EngineJob, ScoreOptions, ScorerJob, TrainerJob
from roll.strategies.base import GenerationStrategy, Prediction, ScoresTokens, ScoreStrategy, TrainStrategy
from roll.strategies.building import build_engine, build_scorer, build_trainer
from roll.strategies.jobs import TrainOptions
from roll.workers.loading import load_role_model, load_text, model_folder, number_format


def train_strategy(config: TrainerKeys, role: str) -> TrainStrategy:
    """Load the model of a trained role (``actor_train``, ``critic``) into its trainer.

    Raises:
        ConfigError: If the model cannot be loaded or the trainer cannot be had.
    """
    worker: TrainWorkerConfig = getattr(config, role)
    name = worker.strategy_args.strategy_name
    require_available(name, role=role)
    _prepare(name)
    return build_trainer(name, trainer_job(config, role))


def trainer_job(config: TrainerKeys, role: str) -> TrainerJob:
    """Return what the trainer of a trained role (``actor_train``, ``critic``) is made of."""
    worker: TrainWorkerConfig = getattr(config, role)
    _, given, path = _chosen(worker, role)
    predicts: Prediction = "log_probs" if config.head(role) == "language" else "values"
    return TrainerJob(
        predicts=predicts,
        options=train_options(config, role),
        folder=partial(model_folder, config, role),
        load=partial(load_role_model, config, role),
        adapt=None if worker.model_args.lora_rank is None else partial(_add_adapters, config, role),
        strategy_config=given,
        path=path,
        seed=config.seed,
        classifier="sequence" if config.head(role) == "score" else "token",
        pad_token_id=partial(_pad_token, config, role),
    )


def train_options(config: TrainerKeys, role: str) -> TrainOptions:
    """Return how the optimiser of a role steps, and how its passes are cut.

    Raises:
        ConfigError: The number format is the model's own, and there is no model.
    """
    worker: TrainWorkerConfig = getattr(config, role)
    arguments = worker.training_args
    total = config.total_optimizer_steps
    budget = arguments.max_tokens_per_microbatch
    return TrainOptions(
        learning_rate=arguments.learning_rate,
        weight_decay=arguments.weight_decay,
        betas=(arguments.adam_beta1, arguments.adam_beta2),
        epsilon=arguments.adam_epsilon,
        max_grad_norm=config.max_grad_norm,
        l2=config.l2,
        lr_scheduler_type=arguments.lr_scheduler_type,
        min_lr_ratio=arguments.min_lr_ratio,
        decay_steps=int(arguments.lr_decay_ratio * total),
        warmup_steps=arguments.warmup_steps or int(arguments.warmup_ratio * total),
        total_steps=total,
        max_tokens_per_microbatch=budget,
        max_samples_per_microbatch=None if budget else arguments.per_device_train_batch_size,
        max_samples_per_scoring=None if budget or not worker.scores_in_own_batches else worker.infer_batch_size,
        mixed_precision=number_format(config, role) == "bf16",
        gradient_checkpointing=not worker.model_args.disable_gradient_checkpointing,
        temperature=config.training_temperature,
        use_sequence_packing=worker.packs,
        share_prefixes=worker.shares_prefixes,
        log_prob_chunk_size=worker.log_prob_chunk_size,
    )


def frozen_scorer(config: TrainerKeys, role: str) -> ScoreStrategy:
    """Load a frozen model.

    Raises:
        ConfigError: If the model cannot be loaded or the scorer cannot be had.
    """
    name = config.role(role).strategy_args.strategy_name
    _prepare(name)
    return build_scorer(name, scorer_job(config, role))


def scorer_job(config: TrainerKeys, role: str) -> ScorerJob:
    """Return what the scorer of a frozen role is made of."""
    worker = config.role(role)
    _, given, path = _chosen(worker, role)
    budget = config.actor_train.training_args.max_tokens_per_microbatch
    options = ScoreOptions(
        temperature=config.training_temperature,
        max_tokens_per_microbatch=budget,
        max_samples_per_microbatch=None if budget else worker.infer_batch_size,
        mixed_precision=number_format(config, role) == "bf16",
        use_sequence_packing=worker.packs,
        share_prefixes=worker.shares_prefixes,
        log_prob_chunk_size=worker.log_prob_chunk_size,
    )
    return ScorerJob(
        options=options,
        folder=partial(model_folder, config, role),
        load=partial(_frozen, config, role),
        strategy_config=given,
        path=path,
        seed=config.seed,
    )


def generation_strategy(
    config: SamplingConfig,
    model: PreTrainedModel | None = None,
    activity: Activity | None = None,
    role: str = "actor_infer",
) -> GenerationStrategy:
    """Start the engine of ``actor_infer``, or of an opponent.

    Args:
        config: The run.
        model: A model in this process to sample from, instead of a copy of its own.
        activity: Tells the engine when everything is quiet; ``None`` for a run that need not be reproducible.
        role: Which role.

    Raises:
        ConfigError: If the model cannot be loaded or the engine cannot be had.
    """
    return _engine(
        config,
        role,
        shared_model=model,
        max_slots=config.max_running_requests,
        max_length=config.sequence_length,
        decode=_decode(config),
        tokenizer=lambda: load_tokenizer(config.model_path(role)),
        activity=activity,
    )


def scoring_engine(config: TaughtConfig | RowDistillConfig, role: str) -> ScoresTokens:
    """Start the engine of a teacher, which scores what the student has said.

    Raises:
        ConfigError: If the model cannot be loaded or the engine cannot be had.
        TypeError: The engine scores no tokens, although its description says so.
    """
    built = _engine(
        config,
        role,
        max_slots=config.role(role).infer_batch_size,
        max_length=config.sequence_length,
        most_named=config.teacher_top_k or 0,
    )
    if not isinstance(built, ScoresTokens):
        raise TypeError(f"{type(built).__name__} is described as scoring tokens: add score and vocabulary")
    return built


def _engine(config: TrainerKeys, role: str, **job: Any) -> GenerationStrategy:
    """Start the engine of a role; ``job`` has what is not said of its section (:class:`EngineJob`)."""
    engine = config.role(role)
    name, given, path = _chosen(engine, role)
    require_available(name, role=role)
    _prepare(name)
    devices = engine.num_gpus_per_worker if engine.device_mapping else 1
    # The policy is sampled from as it is trained; an opponent is a model of its own.
    source = "actor_train" if role == "actor_infer" else role
    made = EngineJob(
        folder=partial(model_folder, config, source),
        load=partial(_frozen, config, source),
        strategy_config=engine.strategy_args.about.divided(given, devices),
        path=path,
        dtype=number_format(config, role),
        seed=config.seed,
        **job,
    )
    return build_engine(name, made)


def _frozen(config: TrainerKeys, role: str) -> PreTrainedModel:
    """Load the model of a role as it is before training, without gradients."""
    return load_role_model(config, role).requires_grad_(False)


def _pad_token(config: TrainerKeys, role: str) -> int | None:
    """Return the token that fills up the sequences of a role's model."""
    found: int | None = load_tokenizer(config.model_path(role)).pad_token_id
    return found


def _decode(config: SamplingConfig) -> Callable[[list[int]], str]:
    """Return what makes text of tokens, where a text ends responses; agent programs may ask for that unforeseen.

    Raises:
        ConfigError: If the configuration has such texts, and the tokenizer cannot be loaded.
    """
    text = functools.cache(lambda: load_text(config))
    if any(sampling.stop_strings for sampling in (config.actor_infer.generating_args, config.val_generating)):
        text()
    return lambda tokens: text().written(tokens)


def _chosen(worker: WorkerConfig, role: str) -> tuple[str, dict[str, Any] | None, str]:
    """Return the name of a role's strategy, its options, and their key path."""
    arguments = worker.strategy_args
    return arguments.strategy_name, arguments.strategy_config, f"{role}.strategy_args.strategy_config"


def _add_adapters(config: TrainerKeys, role: str, model: PreTrainedModel) -> PreTrainedModel:
    """Give a model the LoRA adapters that its role asks for, if any, in place.

    Raises:
        ConfigError: If peft is not installed, or a target is no layer of the model.
    """
    arguments = getattr(config, role).model_args
    if arguments.lora_rank is None:
        return model
    key = f"{role}.model_args"
    try:
        return add_adapters(model, arguments.lora_rank, arguments.lora_alpha, arguments.lora_target, seed=config.seed)
    except ModuleNotFoundError as error:
        problem = Problem(f"{key}.lora_rank", "the Python package peft is missing.", "pip install 'roll-rl[lora]'.")
        raise ConfigError([problem]) from error
    except ValueError as error:
        fix = "name linear layers of the model, or leave it out for all of them."
        raise ConfigError([Problem(f"{key}.lora_target", str(error), fix, arguments.lora_target)]) from error


def _prepare(name: str) -> None:
    """Make this process a group of one, where a strategy always wants a group and its role has one rank."""
    if STRATEGIES.get(name).needs_process_group and not dist.is_initialized():
        dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
