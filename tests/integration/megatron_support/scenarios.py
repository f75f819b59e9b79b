"""What ranks do, and what a plain loop of PyTorch does in one process, so that the results can be compared."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForTokenClassification,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from roll.models.lora import add_adapters
from roll.pipelines.learning.objective import PolicyObjective
from roll.pipelines.learning.value_objective import ValueObjective
from roll.strategies.base import Loss
from roll.strategies.jobs import TrainOptions
from roll.strategies.training.supervised import SupervisedLoss

VOCABULARY = 150
"""Ends inside the part of the second of two ranks, so that padding counts."""

LONGEST = 18

RATE, DECAY, EPSILON, LIMIT, STEPS = 1e-2, 0.1, 1e-4, 0.1, 12

TENSOR = {"tensor_model_parallel_size": 2}
SEQUENCE = {**TENSOR, "sequence_parallel": True}
PIPELINE = {"pipeline_model_parallel_size": 2}
INTERLEAVED = {**PIPELINE, "virtual_pipeline_model_parallel_size": 2}
CONTEXT = {"context_parallel_size": 2}
EXPERTS = {"expert_model_parallel_size": 2}
"""Divisions of ranks."""


@dataclass(frozen=True)
class Case:
    """A training run.

    Attributes:
        megatron: How the model is spread over ranks.
        rows: Of the whole batch.
        uneven: Give the first data rank most of the rows.
        family: Of the model.
        layers: Of the model.
        tied: Whether head and embeddings are one parameter.
        critic: Train a value model.
        dropout: Of the attention.
        train: Changes to the training options.
        lora: What ``add_adapters`` is told; ``None`` trains all weights.
        imitates: Learn from demonstrations.
    """

    megatron: dict[str, Any] = field(default_factory=dict)
    rows: int = 8
    uneven: bool = False
    family: str = "qwen3"
    layers: int = 2
    tied: bool = False
    critic: bool = False
    dropout: float = 0.0
    train: dict[str, Any] = field(default_factory=dict)
    lora: dict[str, Any] | None = None
    imitates: bool = False

    def model(self, seed: int = 3) -> PreTrainedModel:
        torch.manual_seed(seed)
        sizes: dict[str, Any] = dict(
            vocab_size=VOCABULARY,
            hidden_size=16,
            num_hidden_layers=self.layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=24,
            max_position_embeddings=64,
            initializer_range=0.2,
            pad_token_id=None,
            tie_word_embeddings=self.tied,
            attention_dropout=self.dropout,
            rms_norm_eps=1e-6,
        )
        if self.critic:
            return self._drawn(
                Qwen3ForTokenClassification(Qwen3Config(**sizes, head_dim=8, num_labels=1, classifier_dropout=0.0))
            )
        if self.family == "qwen2":
            return self._drawn(Qwen2ForCausalLM(Qwen2Config(**sizes)))
        if self.family == "llama":
            scaling = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0}
            scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 16}
            return self._drawn(LlamaForCausalLM(LlamaConfig(**sizes, rope_parameters=scaling)))
        if self.family == "qwen3_moe":
            experts = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12, norm_topk_prob=True)
            sparse = dict(mlp_only_layers=[0]) if self.layers > 2 else {}
            config = Qwen3MoeConfig(**sizes, **experts, **sparse, head_dim=8, experts_implementation="eager")
            return self._drawn(Qwen3MoeForCausalLM(config))
        return self._drawn(Qwen3ForCausalLM(Qwen3Config(**sizes, head_dim=8)))

    def _drawn(self, model: PreTrainedModel) -> PreTrainedModel:
        """Give norms and biases values that are not the same everywhere."""
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim == 1:
                    parameter.add_(0.2 * torch.randn_like(parameter)) if "norm" in name else parameter.normal_(0, 0.2)
        return model

    def adapt(self, model: PreTrainedModel) -> PreTrainedModel:
        """Give a model the adapters of this case, if any, in place."""
        return model if self.lora is None else add_adapters(model, **self.lora)

    @property
    def options(self) -> TrainOptions:
        given = dict(
            learning_rate=RATE,
            weight_decay=DECAY,
            epsilon=EPSILON,
            max_grad_norm=LIMIT,
            lr_scheduler_type="cosine",
            total_steps=STEPS,
            max_tokens_per_microbatch=40,
        )
        return TrainOptions(**{**given, **self.train})

    def loss(self) -> Loss:
        if self.critic:
            return ValueObjective(clip=0.2, aggregation="token-mean")
        if self.imitates:
            return SupervisedLoss()
        return PolicyObjective(
            options={"clip_low": 0.2, "clip_high": 0.3},
            entropy_weight=0.01,
            kl_weight=0.05,
            aggregation="seq-mean-token-mean",
        )

    def own_rows(self, data_rank: int, data_size: int) -> slice:
        """Return the rows of a data rank."""
        if data_size == 1:
            return slice(0, self.rows)
        first = self.rows - (data_size - 1) if self.uneven else self.rows // data_size
        bounds = [0, *np.linspace(first, self.rows, data_size).astype(int).tolist()]
        return slice(bounds[data_rank], bounds[data_rank + 1])

    def batch(self, seed: int = 0) -> TensorDict:
        """Rows of unequal length with unequal masks; one without a response."""
        rows, noise = self.rows, torch.Generator().manual_seed(seed)
        lengths = torch.randint(4, LONGEST + 1, (rows,), generator=noise)
        lengths[0] = LONGEST
        inside = torch.arange(LONGEST).expand(rows, LONGEST) < lengths.unsqueeze(1)
        ids = torch.randint(1, VOCABULARY, (rows, LONGEST), generator=noise).masked_fill(~inside, 0)
        # The later a row, the more of it is trained: means of ranks are not the mean of all.
        dense = torch.linspace(0.1, 0.9, rows).unsqueeze(1)
        mask = (torch.rand(rows, LONGEST, generator=noise) < dense) & inside
        mask[:, 0], mask[:, 2], mask[1] = False, True, False

        def random(scale: float) -> Tensor:
            return scale * torch.randn(rows, LONGEST, generator=noise) * mask

        old = (-5.0 * mask) + random(0.7)
        columns = {"input_ids": ids, "response_mask": mask, "lengths": lengths, "advantages": random(3.0)}
        columns |= {"values": random(0.5), "returns": random(1.0)}
        columns |= {"old_log_probs": old, "ref_log_probs": old + random(0.3)}
        return TensorDict(columns, batch_size=[rows])


@dataclass
class Outcome:
    """What a run left behind, as NumPy arrays.

    Attributes:
        steps: Metrics of each step.
        outputs: Log-probs or values of a batch after the last one, ``[rows of this rank, sequence]``.
        parameters: By Hugging Face name.
        rows: Which rows of the batch the outputs are of.
    """

    steps: list[dict[str, float]]
    outputs: np.ndarray
    parameters: dict[str, np.ndarray]
    rows: slice | None = None


def plain_outputs(model: PreTrainedModel, batch: TensorDict, temperature: float = 1.0) -> tuple[Tensor, Tensor | None]:
    """Return log-probs and entropies, or values, from the logits of the whole batch."""
    mask = batch["response_mask"]
    logits = model(input_ids=batch["input_ids"], use_cache=False).logits[:, :-1]
    if logits.shape[-1] == 1:
        return torch.nn.functional.pad(logits.squeeze(-1), (1, 0)) * mask, None
    every = torch.log_softmax(logits / temperature, -1)
    chosen = every.gather(-1, batch["input_ids"][:, 1:, None]).squeeze(-1)
    entropy = -(every.exp() * every).sum(-1)
    return torch.nn.functional.pad(chosen, (1, 0)) * mask, torch.nn.functional.pad(entropy, (1, 0)) * mask


def train_plain(case: Case, batches: list[TensorDict]) -> Outcome:
    """Train the Hugging Face model with PyTorch's AdamW, in one process, all rows at once."""
    model, options, loss = case.model().eval(), case.options, case.loss()
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}],
        betas=options.betas,
        eps=EPSILON,
    )
    steps = []
    for number, batch in enumerate(batches):
        optimizer.zero_grad()
        outputs, entropy = plain_outputs(model, batch, options.temperature)
        value, metrics = loss(outputs, entropy, batch, loss.totals(batch))
        if options.l2:
            penalty = 0.5 * options.l2 * sum(matrix.square().sum() for matrix in matrices)
            value = value + penalty
            metrics["loss/l2"] = penalty.detach()
        value.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        rate = RATE * 0.5 * (1 + math.cos(math.pi * number / STEPS))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        numbers = {name: float(metric) for name, metric in metrics.items()}
        steps.append({"loss": float(value.detach()), **numbers, "grad_norm": float(norm), "learning_rate": rate})
    with torch.no_grad():
        outputs, _ = plain_outputs(model, case.batch(77), options.temperature)
    parameters = {name: parameter.detach().numpy().copy() for name, parameter in model.named_parameters()}
    return Outcome(steps, outputs.numpy().copy(), parameters)
