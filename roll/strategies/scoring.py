"""Scoring tokens with a model: log-probs and entropies, in micro-batches."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from tensordict import TensorDict
from torch import Tensor
from transformers import PreTrainedModel

from roll.strategies.log_probs import TokenOutputs, forward_log_probs
from roll.strategies.micro_batches import iterate_micro_batches


class Scorer:
    """Computes log-probs with a model that somebody else owns; a frozen reference policy needs nothing more.

    Args:
        model: A Hugging Face causal language model on its device.
        temperature: Logits are divided by it, so that log-probs are those of the distribution sampled from.
        max_tokens_per_microbatch: Hard cap on padded tokens per forward; ``None`` for none.
        max_samples_per_microbatch: Hard cap on sequences per forward; ``None`` for none.
        mixed_precision: Compute in bf16 under autocast.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        temperature: float = 1.0,
        max_tokens_per_microbatch: int | None = 8192,
        max_samples_per_microbatch: int | None = None,
        mixed_precision: bool = False,
    ) -> None:
        self.model = model
        self.device = next(model.parameters()).device
        self.temperature = temperature
        self.max_tokens = max_tokens_per_microbatch
        self.max_samples = max_samples_per_microbatch
        self.mixed_precision = mixed_precision

    @torch.no_grad()
    def compute_log_probs(self, batch: TensorDict) -> Tensor:
        """Return log p(token t | tokens < t), ``[batch, sequence]`` float32, 0 where the response mask is 0."""
        result = torch.zeros(batch["input_ids"].shape, dtype=torch.float32)
        for indices, micro in iterate_micro_batches(
            batch, self.device, max_tokens=self.max_tokens, max_samples=self.max_samples
        ):
            outputs = self.forward(micro, with_entropy=False)
            result[indices, : micro["input_ids"].shape[1]] = outputs.log_probs.to(result)
        return result

    def forward(self, micro: TensorDict, *, with_entropy: bool) -> TokenOutputs:
        """Return log-probs, and entropies if asked, of one micro-batch, with gradients if they are enabled."""
        with self._precision():
            return forward_log_probs(
                self.model,
                micro["input_ids"],
                micro["response_mask"],
                temperature=self.temperature,
                with_entropy=with_entropy,
            )

    def _precision(self) -> AbstractContextManager[object]:
        if self.mixed_precision:
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()
