"""Strategies by name: the engine that a role's configuration asks for."""

from __future__ import annotations

from transformers import PreTrainedModel

from roll.config import PipelineConfig, plan, require_available
from roll.config.worker import TrainWorkerConfig
from roll.strategies.activity import Activity
from roll.strategies.base import GenerationStrategy
from roll.strategies.fsdp.options import FsdpOptions
from roll.strategies.fsdp_train import FsdpTrainStrategy, TrainOptions
from roll.strategies.hf_infer import HfInferStrategy
from roll.strategies.scoring import Prediction, Scorer
from roll.workers.loading import load_role_model


def train_strategy(config: PipelineConfig, role: str) -> FsdpTrainStrategy:
    """Load the model of a trained role (``actor_train``, ``critic``) into its engine.

    Raises:
        ConfigError: If the model cannot be loaded or the engine cannot be had.
    """
    worker: TrainWorkerConfig = getattr(config, role)
    name = worker.strategy_args.strategy_name
    require_available(name, role=role)
    predicts: Prediction = "values" if role == "critic" else "log_probs"
    options = train_options(config, worker)
    fsdp = FsdpOptions.from_mapping(worker.strategy_args.strategy_config, f"{role}.strategy_args.strategy_config")
    return FsdpTrainStrategy(load_role_model(config, role, predicts), options, predicts=predicts, fsdp=fsdp)


def train_options(config: PipelineConfig, worker: TrainWorkerConfig) -> TrainOptions:
    """Return how the optimiser of a role steps, and how its passes are cut."""
    arguments = worker.training_args
    total = plan(config).total_optimizer_steps
    budget = arguments.max_tokens_per_microbatch
    return TrainOptions(
        learning_rate=arguments.learning_rate,
        weight_decay=arguments.weight_decay,
        betas=(arguments.adam_beta1, arguments.adam_beta2),
        epsilon=arguments.adam_epsilon,
        max_grad_norm=config.max_grad_norm,
        l2=config.l2,
        lr_scheduler_type=arguments.lr_scheduler_type,
        warmup_steps=arguments.warmup_steps or int(arguments.warmup_ratio * total),
        total_steps=total,
        max_tokens_per_microbatch=budget,
        max_samples_per_microbatch=None if budget else arguments.per_device_train_batch_size,
        mixed_precision=worker.model_args.dtype == "bf16",
        gradient_checkpointing=not worker.model_args.disable_gradient_checkpointing,
        temperature=training_temperature(config),
        use_sequence_packing=worker.packs,
        log_prob_chunk_size=worker.log_prob_chunk_size,
    )


def reference_scorer(config: PipelineConfig) -> Scorer:
    """Load the frozen policy.

    Raises:
        ConfigError: If the model cannot be loaded.
    """
    worker = config.reference or config.actor_train
    budget = config.actor_train.training_args.max_tokens_per_microbatch
    name = worker.strategy_args.strategy_name
    options = worker.strategy_args.strategy_config if name in ("fsdp_infer", "fsdp_train") else None
    return Scorer(
        load_role_model(config, "reference").requires_grad_(False),
        temperature=training_temperature(config),
        max_tokens_per_microbatch=budget,
        max_samples_per_microbatch=None if budget else worker.infer_batch_size,
        mixed_precision=worker.model_args.dtype == "bf16",
        use_sequence_packing=worker.packs,
        log_prob_chunk_size=worker.log_prob_chunk_size,
        fsdp=FsdpOptions.from_mapping(options, "reference.strategy_args.strategy_config"),
    )


def generation_strategy(
    config: PipelineConfig, model: PreTrainedModel | None = None, activity: Activity | None = None
) -> GenerationStrategy:
    """Start the engine of ``actor_infer``.

    Args:
        config: The run.
        model: A model in this process to sample from, instead of a copy of its own.
        activity: Tells the engine when everything is quiet; ``None`` for a run that need not be reproducible.

    Raises:
        ConfigError: If the model cannot be loaded or the engine cannot be had.
    """
    require_available(config.actor_infer.strategy_args.strategy_name, role="actor_infer")
    return HfInferStrategy(
        model if model is not None else load_role_model(config, "actor_train").requires_grad_(False),
        max_slots=config.max_running_requests,
        max_length=config.sequence_length,
        activity=activity,
    )


def training_temperature(config: PipelineConfig) -> float:
    """Return the temperature whose log-probs are trained; greedy sampling has those of the untempered policy."""
    return config.actor_infer.generating_args.temperature or 1.0
