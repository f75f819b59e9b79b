"""`deepspeed_infer`: scoring with a frozen model, whole on every rank or shared out with ZeRO stage 3."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tensordict import TensorDict
from torch import Tensor, nn
from transformers import PreTrainedModel

from roll.algorithms.distillation import REVERSE_KL, Divergence
from roll.config.errors import ConfigError, Problem
from roll.strategies.base import Prediction
from roll.strategies.training.deepspeed.engine import (
    first_rank_weights_everywhere,
    make_engine,
    numel_of,
    start_deepspeed,
)
from roll.strategies.training.deepspeed.loading import load_shared_out
from roll.strategies.training.deepspeed.memory import DeviceMemory
from roll.strategies.training.deepspeed.options import DeepSpeedOptions
from roll.strategies.training.deepspeed.predictor import whole_head
from roll.strategies.training.deepspeed.scorer import EngineScorer
from roll.strategies.training.pytorch.scoring import Scorer


class DeepSpeedInferStrategy:
    """Computes what a frozen model says of tokens (see :class:`roll.strategies.training.pytorch.scoring.Scorer`).

    Each rank of the default process group makes this strategy with the same model. Under stage 3 every rank then calls
    every method, with a share of the batch that may be empty; under stage 0 ranks work on their own.

    Args:
        model: A Hugging Face model, or a function that loads it
            (see :class:`roll.strategies.training.deepspeed.train.DeepSpeedTrainStrategy`).
        predicts: ``log_probs`` of a language model, or ``values`` of a critic.
        temperature: Logits are divided by it.
        max_tokens_per_microbatch: Hard cap on tokens per forward, padding included; ``None`` for none.
        max_samples_per_microbatch: Hard cap on sequences per forward; ``None`` for none.
        mixed_precision: Compute in bf16.
        use_sequence_packing: Lay the sequences of a micro-batch end to end instead of padding them.
        share_prefixes: Pack, and compute equal beginnings of the sequences of a micro-batch once.
        log_prob_chunk_size: Most tokens whose logits are held at once; ``None`` chooses by vocabulary.
        config: DeepSpeed's JSON configuration, or one that is already checked.
        path: The key path of ``config``, for errors.

    Raises:
        ConfigError: ``config`` is wrong, or its stage is 1 or 2.
        ImportError: DeepSpeed is not installed.
    """

    def __init__(
        self,
        model: PreTrainedModel | Callable[[], PreTrainedModel],
        *,
        predicts: Prediction = "log_probs",
        temperature: float = 1.0,
        max_tokens_per_microbatch: int | None = 8192,
        max_samples_per_microbatch: int | None = None,
        mixed_precision: bool = False,
        use_sequence_packing: bool = False,
        share_prefixes: bool = False,
        log_prob_chunk_size: int | None = None,
        config: Mapping[str, Any] | DeepSpeedOptions | None = None,
        path: str = "strategy_config",
    ) -> None:
        zero = config if isinstance(config, DeepSpeedOptions) else DeepSpeedOptions.from_mapping(config, path)
        zero.check_precision(mixed_precision, path)
        if zero.stage in (1, 2):
            message = "stages 1 and 2 share out gradients and optimiser states, and scoring has neither."
            fix = "use stage 3 to share out weights, or stage 0."
            raise ConfigError([Problem(f"{path}.zero_optimization.stage", message, fix, zero.stage)])
        start_deepspeed()
        if not isinstance(model, PreTrainedModel):
            model = load_shared_out(model, zero, mixed_precision=mixed_precision, predicts=predicts)
        self.model = model
        self._engine: Any = None
        common: dict[str, Any] = dict(
            predicts=predicts,
            temperature=temperature,
            max_tokens_per_microbatch=max_tokens_per_microbatch,
            max_samples_per_microbatch=max_samples_per_microbatch,
            mixed_precision=mixed_precision,
            use_sequence_packing=use_sequence_packing,
            share_prefixes=share_prefixes,
            log_prob_chunk_size=log_prob_chunk_size,
        )
        self._scorer: Scorer
        if zero.stage == 3:
            hidden_size = self.model.config.get_text_config().hidden_size
            given = zero.config(mixed_precision=mixed_precision, hidden_size=hidden_size, numel=numel_of(self.model))
            self._scorer = scorer = EngineScorer(self.model, lambda module: make_engine(module, given), **common)
            self._engine = scorer.engine
        else:
            first_rank_weights_everywhere(self.model)
            self._scorer = Scorer(self.model, **common)
        self._memory = DeviceMemory(self.model, self._engine)
        self.device = self._scorer.device

    def compute_log_probs(self, batch: TensorDict) -> Tensor:
        """Return log p(token t | tokens < t), ``[batch, sequence]`` float32, 0 where the response mask is 0."""
        self._prepare()
        return self._scorer.compute_log_probs(batch)

    def compute_values(self, batch: TensorDict) -> Tensor:
        """Return the value of the state before token t, ``[batch, sequence]`` float32, 0 where the mask is 0."""
        self._prepare()
        return self._scorer.compute_values(batch)

    def compute_states(self, batch: TensorDict) -> Tensor:
        """Return the hidden states before each token of the mask, ``[batch, sequence, hidden]``, 0 elsewhere."""
        self._prepare()
        return self._scorer.compute_states(batch)

    def measure_from(self, *heads: nn.Module, divergence: Divergence = REVERSE_KL) -> None:
        """Let batches say what their ``divergence`` is measured from (:mod:`roll.strategies.training.comparing`)."""
        self._scorer.measure_from(*heads, divergence=divergence)

    def compute_divergence(self, batch: TensorDict) -> Tensor:
        """Return the divergence from the reference over the whole vocabulary, ``[batch, sequence]``, 0 outside."""
        self._prepare()
        return self._scorer.compute_divergence(batch)

    def head(self) -> tuple[Tensor, Tensor | None]:
        """Return weight ``[vocabulary, hidden]`` and bias of the output layer; every rank must call it."""
        self._prepare()
        layer: Any = whole_head(self.model.get_output_embeddings())
        return layer.weight.detach(), None if layer.bias is None else layer.bias.detach()

    @property
    def offloaded(self) -> bool:
        """Whether the weights are handed over, so that nothing can be computed."""
        return self._memory.weights

    def offload(self) -> None:
        """Move the weights to CPU memory, so that others can use the device; on the CPU they stay where they are."""
        self._memory.offload(weights=True, optimizer=False)

    def reload(self) -> None:
        """Take the weights back to the device, exactly as they were."""
        self._memory.reload(weights=True, optimizer=False)

    def close(self) -> None:
        """Take DeepSpeed's hooks away; nothing else can be called afterwards."""
        if self._engine is not None:
            self._engine.destroy()

    def _prepare(self) -> None:
        self._memory.check()
        self.model.eval()
