"""The models of a run and the engine that samples from them: what every pipeline is built on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from roll.config import ConfigError, GeneratingArgs, PipelineConfig, Problem, plan
from roll.config.worker import TrainWorkerConfig
from roll.models.critic import load_critic
from roll.models.loading import ModelNotFoundError, load_model, load_tokenizer
from roll.rendering.chat import ChatRenderer
from roll.schedulers.generation import GenerationScheduler
from roll.strategies.activity import Activity
from roll.strategies.base import GenerationStrategy, SamplingParams, TrainStrategy, WeightUpdate
from roll.strategies.fsdp.options import FsdpOptions
from roll.strategies.fsdp_train import FsdpTrainStrategy, TrainOptions
from roll.strategies.hf_infer import HfInferStrategy
from roll.strategies.scoring import Prediction, Scorer

ATTENTION = {"auto": None, "eager": "eager", "sdpa": "sdpa", "fa2": "flash_attention_2"}


@dataclass(kw_only=True)
class Text:
    """Text to tokens and back; there before any model is loaded, so that data can be checked first.

    Attributes:
        tokenizer: Of the policy.
        renderer: Messages to tokens and back.
    """

    tokenizer: PreTrainedTokenizerBase
    renderer: ChatRenderer

    def token_text(self, token: int) -> str:
        """Return the text of one token, for people."""
        return str(self.tokenizer.decode([token]))


@dataclass(kw_only=True)
class Sampler(Text):
    """What samples from a policy.

    Attributes:
        model: The policy's weights, which the engine samples from.
        engine: Samples from the policy (``actor_infer``).
        generation: Routes requests to the engine.
        activity: Tells the engine when everything is quiet; ``None`` for a run that need not be reproducible.
    """

    model: PreTrainedModel
    engine: GenerationStrategy
    generation: GenerationScheduler
    activity: Activity | None

    async def close(self) -> None:
        """Stop the engine."""
        await self.engine.close()


@dataclass(kw_only=True)
class Core(Sampler):
    """The roles of a training run.

    Attributes:
        trainer: The policy being trained (``actor_train``); it updates the very weights that the engine samples from.
        critic: The value model, where the estimator needs one.
        reference: Scores with the frozen policy, where a term needs it.
    """

    trainer: TrainStrategy
    critic: TrainStrategy | None
    reference: Scorer | None

    async def publish(self, version: int) -> None:
        """Give the engine the trainer's weights."""
        await self.engine.update_weights(WeightUpdate(version, self.trainer.named_parameters()))


def load_text(config: PipelineConfig) -> Text:
    """Load the policy's tokenizer.

    Raises:
        ConfigError: If it cannot be loaded.
    """
    with readable(config, "actor_train"):
        tokenizer = load_tokenizer(config.model_path("actor_train"))
    return Text(tokenizer=tokenizer, renderer=ChatRenderer(tokenizer))


def build_sampler(config: PipelineConfig, text: Text) -> Sampler:
    """Load the policy and start its engine.

    Raises:
        ConfigError: If the model cannot be loaded.
    """
    model = _load(config, "actor_train")
    activity = Activity() if config.deterministic else None
    engine = HfInferStrategy(
        model,
        max_slots=config.max_running_requests,
        max_length=config.sequence_length,
        activity=activity,
    )
    return Sampler(
        tokenizer=text.tokenizer,
        renderer=text.renderer,
        model=model,
        engine=engine,
        generation=GenerationScheduler(engine),
        activity=activity,
    )


def build_core(config: PipelineConfig, text: Text) -> Core:
    """Load the models of a configuration that a preflight check has passed.

    Raises:
        ConfigError: If a model cannot be loaded.
    """
    sampler = build_sampler(config, text)
    trainer, reference = build_trainer(config, config.actor_train, sampler.model), _reference(config)
    if reference is not None and config.kl_penalty == "full":
        trainer.measure_from(reference.model.get_output_embeddings())
    return Core(
        **{field.name: getattr(sampler, field.name) for field in fields(sampler)},
        trainer=trainer,
        critic=_critic(config),
        reference=reference,
    )


def build_trainer(
    config: PipelineConfig, worker: TrainWorkerConfig, model: PreTrainedModel, predicts: Prediction = "log_probs"
) -> FsdpTrainStrategy:
    """Make the train strategy of a role: of a policy, or of a critic, which predicts values."""
    arguments = worker.training_args
    total = plan(config).total_optimizer_steps
    budget = arguments.max_tokens_per_microbatch
    options = TrainOptions(
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
        temperature=_temperature(config),
        use_sequence_packing=worker.packs,
        log_prob_chunk_size=worker.log_prob_chunk_size,
    )
    fsdp = FsdpOptions.from_mapping(worker.strategy_args.strategy_config)
    return FsdpTrainStrategy(model, options, predicts=predicts, fsdp=fsdp)


def sampling_params(generating: GeneratingArgs) -> SamplingParams:
    """Return what the engine is told about sampling."""
    return SamplingParams(
        max_new_tokens=generating.max_new_tokens,
        temperature=generating.temperature,
        top_p=generating.top_p,
        top_k=generating.top_k,
    )


def device() -> torch.device:
    """Return the first accelerator, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def readable(config: PipelineConfig, role: str) -> Iterator[None]:
    """Make a model that is not there a problem of the key that names it."""
    try:
        yield
    except ModelNotFoundError as error:
        worker = getattr(config, role)
        named = worker is not None and worker.model_args.model_name_or_path is not None
        key = f"{role}.model_args.model_name_or_path" if named else "pretrain"
        message, _, fix = str(error).partition(" Use ")
        raise ConfigError([Problem(key, message, f"use {fix}", config.model_path(role))]) from error


def _load(config: PipelineConfig, role: str) -> PreTrainedModel:
    arguments = (getattr(config, role) or config.actor_train).model_args
    with readable(config, role):
        return load_model(
            config.model_path(role),
            # bf16 is mixed precision: fp32 weights and optimiser states, bf16 arithmetic.
            dtype="fp32" if arguments.dtype == "bf16" else arguments.dtype,
            device=str(device()),
            attn_implementation=ATTENTION[arguments.attn_implementation],
        )


def _critic(config: PipelineConfig) -> TrainStrategy | None:
    if config.adv_estimator != "gae" or config.critic is None:
        return None
    arguments = config.critic.model_args
    with readable(config, "critic"):
        model = load_critic(
            config.model_path("critic"),
            dtype="fp32" if arguments.dtype == "bf16" else arguments.dtype,
            device=str(device()),
            attn_implementation=ATTENTION[arguments.attn_implementation],
        )
    return build_trainer(config, config.critic, model, "values")


def _reference(config: PipelineConfig) -> Scorer | None:
    if not config.needs_reference:
        return None
    worker = config.reference or config.actor_train
    budget = config.actor_train.training_args.max_tokens_per_microbatch
    return Scorer(
        _load(config, "reference").requires_grad_(False),
        temperature=_temperature(config),
        max_tokens_per_microbatch=budget,
        max_samples_per_microbatch=None if budget else worker.infer_batch_size,
        mixed_precision=worker.model_args.dtype == "bf16",
        use_sequence_packing=worker.packs,
        log_prob_chunk_size=worker.log_prob_chunk_size,
    )


def _temperature(config: PipelineConfig) -> float:
    """Return the temperature whose log-probs are trained; greedy sampling has those of the untempered policy."""
    return config.actor_infer.generating_args.temperature or 1.0
