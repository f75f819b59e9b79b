"""Strategies by name: the engine that a role's configuration asks for. Heavy packages load when they are chosen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist
from transformers import PreTrainedModel

from roll.config import ConfigError, PipelineConfig, Problem, plan, require_available
from roll.config.worker import TrainWorkerConfig, WorkerConfig
from roll.generation import Activity
from roll.models.lora import add_adapters
from roll.strategies.base import GenerationStrategy, Prediction
from roll.strategies.generation.engine_options import divided
from roll.strategies.generation.hf_infer import HfInferStrategy
from roll.strategies.training.pytorch.loading import load_on_first_rank
from roll.strategies.training.pytorch.options import FsdpOptions
from roll.strategies.training.pytorch.scoring import Scorer
from roll.strategies.training.pytorch.train import FsdpTrainStrategy
from roll.strategies.training.trainer import TrainOptions
from roll.workers.loading import load_role_model, load_text, model_folder


def train_strategy(config: PipelineConfig, role: str) -> Any:
    """Load the model of a trained role (``actor_train``, ``critic``) into its engine.

    Returns:
        A :class:`roll.strategies.base.TrainStrategy`.

    Raises:
        ConfigError: If the model cannot be loaded or the engine cannot be had.
    """
    worker: TrainWorkerConfig = getattr(config, role)
    name, given, path = _chosen(worker, role)
    require_available(name, role=role)
    predicts: Prediction = "values" if role == "critic" else "log_probs"
    options = train_options(config, worker)
    if name == "megatron_train":
        from roll.strategies.training.megatron.options import MegatronOptions
        from roll.strategies.training.megatron.train import MegatronTrainStrategy

        _require_process_group()
        megatron = MegatronOptions.from_mapping(given, path)
        folder = model_folder(config, role)
        adapt = None if worker.model_args.lora_rank is None else partial(_add_adapters, config, role)
        return MegatronTrainStrategy(
            folder, options, predicts=predicts, megatron=megatron, seed=config.seed, adapt=adapt
        )
    load = partial(load_role_model, config, role, predicts)
    prepare = partial(_add_adapters, config, role)
    if name == "deepspeed_train":
        from roll.strategies.training.deepspeed.train import DeepSpeedTrainStrategy

        # Adapters need the weights: with them the model is loaded whole, and shared out afterwards.
        model = load if worker.model_args.lora_rank is None else prepare(load())
        return DeepSpeedTrainStrategy(model, options, predicts=predicts, config=given, path=path)
    fsdp = FsdpOptions.from_mapping(given, path)
    model = load_on_first_rank(load, prepare) if fsdp.meta_init else prepare(load())
    return FsdpTrainStrategy(model, options, predicts=predicts, fsdp=fsdp)


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
        max_samples_per_scoring=None if budget or not worker.scores_in_own_batches else worker.infer_batch_size,
        mixed_precision=worker.model_args.dtype == "bf16",
        gradient_checkpointing=not worker.model_args.disable_gradient_checkpointing,
        temperature=training_temperature(config),
        use_sequence_packing=worker.packs,
        log_prob_chunk_size=worker.log_prob_chunk_size,
    )


def reference_scorer(config: PipelineConfig) -> Any:
    """Load the frozen policy.

    Returns:
        What scores batches, as :class:`roll.strategies.training.pytorch.scoring.Scorer` does.

    Raises:
        ConfigError: If the model cannot be loaded or the engine cannot be had.
    """
    worker = config.reference or config.actor_train
    name, given, path = _chosen(worker, "reference")
    budget = config.actor_train.training_args.max_tokens_per_microbatch
    options: dict[str, Any] = {
        "temperature": training_temperature(config),
        "max_tokens_per_microbatch": budget,
        "max_samples_per_microbatch": None if budget else worker.infer_batch_size,
        "mixed_precision": worker.model_args.dtype == "bf16",
        "use_sequence_packing": worker.packs,
        "log_prob_chunk_size": worker.log_prob_chunk_size,
    }
    if name.startswith("megatron"):
        from roll.strategies.training.megatron.options import MegatronOptions
        from roll.strategies.training.megatron.scorer import MegatronScorer

        _require_process_group()
        folder = model_folder(config, "reference")
        return MegatronScorer(folder, megatron=MegatronOptions.from_mapping(given, path), seed=config.seed, **options)

    def load() -> PreTrainedModel:
        return load_role_model(config, "reference").requires_grad_(False)

    if name == "deepspeed_infer":
        from roll.strategies.training.deepspeed.infer import DeepSpeedInferStrategy

        return DeepSpeedInferStrategy(load, config=given, path=path, **options)
    # A reference without keys of its own is the policy before training: of DeepSpeed's, scored as with hf_infer.
    fsdp = FsdpOptions.from_mapping(given if name.startswith("fsdp") else None, path)
    return Scorer(load_on_first_rank(load) if fsdp.meta_init else load(), fsdp=fsdp, **options)


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
    name, given, _ = _chosen(config.actor_infer, "actor_infer")
    require_available(name, role="actor_infer")
    limits: dict[str, Any] = {
        "max_slots": config.max_running_requests,
        "max_length": config.sequence_length,
        "decode": _decode(config),
    }
    if name == "hf_infer":
        own = model if model is not None else load_role_model(config, "actor_train").requires_grad_(False)
        return HfInferStrategy(own, activity=activity, **limits)
    folder = model_folder(config, "actor_train")
    devices = config.actor_infer.num_gpus_per_worker if config.actor_infer.device_mapping else 1
    options = {
        "dtype": config.actor_infer.model_args.dtype,
        "strategy_config": divided(name, given, devices),
        "seed": config.seed,
        **limits,
    }
    if name == "vllm":
        from roll.strategies.generation.vllm import VllmStrategy

        return VllmStrategy(folder, **options)
    from roll.strategies.generation.sglang import SglangStrategy

    return SglangStrategy(folder, **options)


def _decode(config: PipelineConfig) -> Callable[[list[int]], str] | None:
    """Return what makes text of tokens, where a text ends responses.

    Raises:
        ConfigError: If the tokenizer cannot be loaded.
    """
    if not any(sampling.stop_strings for sampling in (config.actor_infer.generating_args, config.val_generating)):
        return None
    tokenizer = load_text(config).tokenizer

    def decode(tokens: list[int]) -> str:
        return str(tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    return decode


def training_temperature(config: PipelineConfig) -> float:
    """Return the temperature whose log-probs are trained; greedy sampling has those of the untempered policy."""
    return config.actor_infer.generating_args.temperature or 1.0


def _chosen(worker: WorkerConfig, role: str) -> tuple[str, dict[str, Any] | None, str]:
    """Return the name of a role's strategy, its options, and their key path."""
    arguments = worker.strategy_args
    return arguments.strategy_name, arguments.strategy_config, f"{role}.strategy_args.strategy_config"


def _add_adapters(config: PipelineConfig, role: str, model: PreTrainedModel) -> PreTrainedModel:
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
        problem = Problem(f"{key}.lora_rank", "the Python package peft is missing.", "pip install 'roll[lora]'.")
        raise ConfigError([problem]) from error
    except ValueError as error:
        fix = "name linear layers of the model, or leave it out for all of them."
        raise ConfigError([Problem(f"{key}.lora_target", str(error), fix, arguments.lora_target)]) from error


def _require_process_group() -> None:
    """Make this process a group of one, where a role has one rank: Megatron-Core always wants a group."""
    if not dist.is_initialized():
        dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
