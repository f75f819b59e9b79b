"""The model of a rank: its stages of the pipeline, and at the end of the last one a head that scores tokens."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from roll.strategies.base import Classifier, Prediction
from roll.strategies.training.comparing import Reference
from roll.strategies.training.log_probs import MAX_LOGITS, TokenOutputs, in_chunks
from roll.strategies.training.megatron.architecture import inverse_frequencies, padded_vocabulary
from roll.strategies.training.megatron.core import (
    DotProductAttention,
    GPTModel,
    TransformerConfig,
    gather_from_sequence_parallel_region,
    get_gpt_decoder_block_spec,
    mpu,
)
from roll.strategies.training.megatron.vocabulary import score_tokens

LayerSpec = Callable[[TransformerConfig, int | None], Any]
"""From the configuration and the virtual stage to the layers of that stage, as ``GPTModel`` takes them."""


def transformer_engine_spec(config: TransformerConfig, virtual_stage: int | None) -> Any:
    """Return layers of Transformer Engine, the default on GPUs.

    Raises:
        ImportError: Transformer Engine is not installed.
    """
    if importlib.util.find_spec("transformer_engine") is None:
        raise ImportError(
            "Megatron-Core's layers for GPUs need Transformer Engine: pip install 'transformer-engine[pytorch]', or "
            "give the strategy a layer_spec of your own."
        )
    return get_gpt_decoder_block_spec(config, use_transformer_engine=True, vp_stage=virtual_stage)


class ValueHead(nn.Module):
    """From hidden states to one number, in fp32, whole on every rank of the last stage.

    Args:
        hidden_size: Width of the states.
        device: Where it is.
        bias: Whether it has one.
    """

    def __init__(self, hidden_size: int, device: torch.device, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, hidden_size, device=device))
        self.bias = nn.Parameter(torch.zeros(1, device=device)) if bias else None

    def forward(self, states: Tensor) -> Tensor:
        """Return the values ``[n]`` of states ``[n, hidden]``."""
        # bf16 has three digits, too few for the small differences of values.
        with torch.autocast(states.device.type, enabled=False):
            values: Tensor = nn.functional.linear(states.float(), self.weight, self.bias)
        return values.squeeze(-1)


class Stage(GPTModel):
    """Some layers of the model. The last stage returns hidden states instead of logits: :meth:`score` makes those."""

    def __init__(
        self,
        config: TransformerConfig,
        hf_config: PretrainedConfig,
        layers: Any,
        *,
        predicts: Prediction,
        classifier: Classifier,
        virtual_stage: int | None,
        device: torch.device,
    ) -> None:
        first = mpu.is_pipeline_first_stage(ignore_virtual=False, vp_stage=virtual_stage)
        last = mpu.is_pipeline_last_stage(ignore_virtual=False, vp_stage=virtual_stage)
        super().__init__(
            config,
            layers,
            vocab_size=padded_vocabulary(hf_config, config.tensor_model_parallel_size),
            max_sequence_length=hf_config.max_position_embeddings,
            pre_process=first,
            post_process=last,
            parallel_output=True,
            share_embeddings_and_output_weights=bool(hf_config.tie_word_embeddings) and predicts == "log_probs",
            position_embedding_type="rope",
            vp_stage=virtual_stage,
        )
        self.rotary_pos_emb.inv_freq = inverse_frequencies(hf_config).to(device)
        self.predicts = predicts
        self.vocabulary = hf_config.vocab_size
        if last and predicts == "values":
            self.output_layer = ValueHead(config.hidden_size, device, bias=classifier == "token")
        elif last:
            # The states it is given here are whole on every rank, see `states_at`.
            head: Any = self.output_layer
            head.sequence_parallel = False

    def score(
        self,
        states: Tensor,
        sources: Tensor,
        targets: Tensor,
        *,
        temperature: float = 1.0,
        with_entropy: bool = False,
        chunk_size: int | None = None,
        reference: Reference | None = None,
    ) -> TokenOutputs:
        """Say what the model predicts after some tokens; of a critic, values.

        Logits are made for ``chunk_size`` tokens at a time, and again in the backward pass.

        Args:
            states: What the last stage returned, ``[sequence, batch, hidden]``.
            sources: ``[n]``: which tokens of this rank, counted row by row.
            targets: ``[n]`` int64: the tokens that follow them.
            temperature: Logits are divided by it.
            with_entropy: Also return entropies.
            chunk_size: Most tokens whose logits are held at once; ``None`` chooses by vocabulary.
            reference: Also return divergences from it; its columns are ``[n, ...]``, and its ``measure`` takes
                log-probs of this rank's part of the vocabulary.

        Returns:
            ``[n]`` each.
        """
        before = self.states_at(states, sources)
        if self.predicts == "values":
            return TokenOutputs(self.output_layer(before), None)
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        first, width = self.own_vocabulary()

        def score_chunk(some: Tensor, wanted: Tensor, *compared: Tensor) -> TokenOutputs:
            logits, _ = self.output_layer(some.unsqueeze(1), weight=weight)

            def measure(log_probs: Tensor) -> Tensor:
                assert reference is not None
                found: Tensor = reference.measure(log_probs, *compared)
                return found

            return score_tokens(
                logits.squeeze(1)[:, :width],
                wanted,
                first=first,
                group=mpu.get_tensor_model_parallel_group(),
                temperature=temperature,
                with_entropy=with_entropy,
                measure=None if reference is None else measure,
            )

        if chunk_size is None:
            chunk_size = max(1, MAX_LOGITS // max(width, 1))
        return in_chunks(score_chunk, chunk_size, before, targets, *(() if reference is None else reference.columns))

    def states_at(self, states: Tensor, sources: Tensor) -> Tensor:
        """Return the states of some tokens, ``[n, hidden]``, from those of the last stage."""
        if self.config.sequence_parallel:
            # What follows is computed by every rank alike; the head itself sums the gradients of its parts.
            states = gather_from_sequence_parallel_region(states, tensor_parallel_output_grad=False)
        return states.transpose(0, 1).reshape(-1, states.shape[-1]).index_select(0, sources)

    def own_vocabulary(self) -> tuple[int, int]:
        """Return the first token of this rank's part of the vocabulary, and how many there are without padding."""
        part = self.vocab_size // self.config.tensor_model_parallel_size
        first = part * mpu.get_tensor_model_parallel_rank()
        return first, min(max(self.vocabulary - first, 0), part)

    def _postprocess(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return hidden_states


def build_stages(
    config: TransformerConfig,
    hf_config: PretrainedConfig,
    layer_spec: LayerSpec,
    *,
    predicts: Prediction,
    classifier: Classifier,
    device: torch.device,
) -> list[Stage]:
    """Make the stages of this rank: one, or several with an interleaved schedule. Their weights are not set."""
    count = config.virtual_pipeline_model_parallel_size
    numbers: list[int | None] = [None] if count is None else list(range(count))
    return [
        Stage(
            config,
            hf_config,
            layer_spec(config, number),
            predicts=predicts,
            classifier=classifier,
            virtual_stage=number,
            device=device,
        ).to(device)
        for number in numbers
    ]


def can_pack(stages: list[Stage]) -> bool:
    """Return whether the attention of the layers keeps packed sequences apart.

    Megatron-Core's own attention in plain PyTorch does not know packed sequences; those of Transformer Engine do.
    """
    return not any(isinstance(module, DotProductAttention) for stage in stages for module in stage.modules())
