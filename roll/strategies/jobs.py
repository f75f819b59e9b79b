"""What a strategy is made of: all that the configuration of its role says, and ways to its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from roll.generation import Activity
from roll.strategies.base import Classifier, Prediction

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJob:
    """An engine that samples from the policy.

    Attributes:
        folder: Returns the folder, or hub name, of the policy before training; raises ``ConfigError`` if there is none.
        load: Loads it into this process, frozen, in the number format of the trainer; raises likewise.
        shared_model: The trainer's own model, where the strategy ``shares_model`` and it is in this process.
        strategy_config: The options.
        path: Key path of the options, for errors.
        dtype: ``fp32``, ``bf16`` or ``fp16``.
        seed: Of the run; requests carry their own.
        max_slots: Most sequences that run at once.
        max_length: Most tokens of a sequence, prompt and completion.
        decode: Makes text of tokens, where texts end responses (:class:`roll.strategies.generation.stop_strings
            .StopStrings`); ``None`` where none do.
        tokenizer: Returns the policy's tokenizer, where requests have grammars; ``None`` where none have.
        activity: Tells when every episode has asked; ``None`` for a run that need not be reproducible.
        most_named: Most tokens that it names at a place of given tokens (:class:`roll.strategies.base.ScoresTokens`);
            ``None`` where it is asked to score none.
    """

    folder: Callable[[], str]
    load: Callable[[], PreTrainedModel]
    shared_model: PreTrainedModel | None = None
    strategy_config: Mapping[str, Any] | None = None
    path: str = "strategy_config"
    dtype: str = "fp32"
    seed: int = 0
    max_slots: int = 256
    max_length: int = 4096
    decode: Callable[[list[int]], str] | None = None
    tokenizer: Callable[[], PreTrainedTokenizerBase] | None = None
    activity: Activity | None = None
    most_named: int | None = None


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """How the optimiser steps.

    Attributes:
        learning_rate: Peak learning rate of AdamW.
        weight_decay: Decoupled weight decay on matrices; vectors (norms, biases) are not decayed.
        l2: Adds ``l2 / 2 * sum(w^2)`` of the matrices to the loss. Unlike weight decay, its gradient is clipped and
            scaled by the optimiser like any other.
        betas: AdamW moments.
        epsilon: AdamW epsilon.
        max_grad_norm: Global gradient norm is clipped to this; 0 switches clipping off.
        lr_scheduler_type: A kind of :func:`roll.strategies.training.schedules.learning_rate_factor`.
        min_lr_ratio: Where a decay ends, over the peak.
        decay_steps: Steps in which ``wsd`` decays.
        warmup_steps: Optimiser steps of linear warm-up.
        total_steps: Optimiser steps of the whole run; the schedule advances once per optimiser step.
        max_tokens_per_microbatch: Hard cap on tokens per forward, padding included; ``None`` for none.
        max_samples_per_microbatch: Hard cap on sequences per forward, or on pairs; ``None`` for none.
        max_samples_per_scoring: The same where nothing is trained; ``None`` takes ``max_samples_per_microbatch``.
        mixed_precision: Compute in bf16, with fp32 weights and optimiser states.
        gradient_checkpointing: Recompute activations in the backward pass.
        temperature: The sampling temperature; log-probs are those of the tempered distribution. Critics have none.
        use_sequence_packing: Lay the sequences of a micro-batch end to end instead of padding them; changes no number.
        share_prefixes: Pack, and compute equal beginnings of the sequences of a micro-batch once; changes no number.
        log_prob_chunk_size: Most tokens whose logits are held at once, the rest being computed again in the backward
            pass; ``None`` chooses by vocabulary.
    """

    learning_rate: float = 1e-6
    weight_decay: float = 0.0
    l2: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    lr_scheduler_type: str = "constant_with_warmup"
    min_lr_ratio: float = 0.0
    decay_steps: int = 0
    warmup_steps: int = 0
    total_steps: int = 1
    max_tokens_per_microbatch: int | None = 8192
    max_samples_per_microbatch: int | None = None
    max_samples_per_scoring: int | None = None
    mixed_precision: bool = False
    gradient_checkpointing: bool = False
    temperature: float = 1.0
    use_sequence_packing: bool = False
    share_prefixes: bool = False
    log_prob_chunk_size: int | None = None

    def for_scoring(self) -> dict[str, Any]:
        """Return what a scorer of the same model is told."""
        return {
            "temperature": self.temperature,
            "max_tokens_per_microbatch": self.max_tokens_per_microbatch,
            "max_samples_per_microbatch": self.max_samples_per_microbatch,
            "max_samples_per_scoring": self.max_samples_per_scoring,
            "mixed_precision": self.mixed_precision,
            "use_sequence_packing": self.use_sequence_packing,
            "share_prefixes": self.share_prefixes,
            "log_prob_chunk_size": self.log_prob_chunk_size,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerJob:
    """A trainer of a policy or a critic.

    Attributes:
        predicts: What is trained.
        options: How it steps.
        folder: Returns the folder, or hub name, of the model before training; raises ``ConfigError`` if there is none.
        load: Loads it into this process; raises likewise.
        adapt: Gives a model LoRA adapters, in place; ``None`` where the role has none.
        strategy_config: The options.
        path: Key path of the options, for errors.
        seed: Of the run.
        classifier: What a model that predicts values is in ``transformers``.
        pad_token_id: Returns the token that fills up sequences.
    """

    predicts: Prediction
    options: TrainOptions
    folder: Callable[[], str]
    load: Callable[[], PreTrainedModel]
    adapt: Callable[[PreTrainedModel], PreTrainedModel] | None = None
    strategy_config: Mapping[str, Any] | None = None
    path: str = "strategy_config"
    seed: int = 0
    classifier: Classifier = "token"
    pad_token_id: Callable[[], int | None] = lambda: None

    def adapted(self, model: PreTrainedModel) -> PreTrainedModel:
        """Return a model as it is trained: with adapters, where the role has some."""
        return model if self.adapt is None else self.adapt(model)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOptions:
    """How a frozen model scores.

    Attributes:
        temperature: Logits are divided by it.
        max_tokens_per_microbatch: Hard cap on tokens per forward, padding included; ``None`` for none.
        max_samples_per_microbatch: Hard cap on sequences per forward; ``None`` for none.
        mixed_precision: Compute in bf16, with the weights as they are.
        use_sequence_packing: Lay the sequences of a micro-batch end to end instead of padding them.
        share_prefixes: Pack, and compute equal beginnings of the sequences of a micro-batch once.
        log_prob_chunk_size: Most tokens whose logits are held at once; ``None`` chooses by vocabulary.
    """

    temperature: float = 1.0
    max_tokens_per_microbatch: int | None = 8192
    max_samples_per_microbatch: int | None = None
    mixed_precision: bool = False
    use_sequence_packing: bool = False
    share_prefixes: bool = False
    log_prob_chunk_size: int | None = None

    def arguments(self) -> dict[str, Any]:
        """Return them by name, as scorers take them."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerJob:
    """What scores with the frozen policy.

    Attributes:
        options: How.
        folder: Returns the folder, or hub name, of the model; raises ``ConfigError`` if there is none.
        load: Loads it into this process, frozen; raises likewise.
        strategy_config: The options of the strategy.
        path: Key path of those, for errors.
        seed: Of the run.
    """

    options: ScoreOptions
    folder: Callable[[], str]
    load: Callable[[], PreTrainedModel]
    strategy_config: Mapping[str, Any] | None = None
    path: str = "strategy_config"
    seed: int = 0
