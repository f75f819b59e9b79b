"""A rank of a trained role (``actor_train``, ``critic``), and one of the frozen policy that is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from transformers import PreTrainedModel

from roll.algorithms.distillation import Divergence, top_k
from roll.config import ConfigError, Problem, RunConfig
from roll.config.trainer_keys import TrainerKeys
from roll.distributed import worker_context
from roll.distributed.process_group import init_process_group
from roll.distributed.weight_sync import Place, WeightOffer, WeightSyncSettings
from roll.runs.layout import step_of
from roll.strategies.base import (
    MEGATRON_FOLDER,
    BatchTotals,
    HasAdapters,
    HasHead,
    HasMegatronModel,
    HasModel,
    HasOptimizer,
    Loss,
    ScoreStrategy,
    SharesRows,
    TrainStrategy,
)
from roll.strategies.fingerprints import Fingerprints
from roll.strategies.training.comparing import log_softmax
from roll.strategies.training.log_probs import MAX_LOGITS
from roll.workers.factory import frozen_scorer, train_strategy
from roll.workers.loading import load_role_model
from roll.workers.memory import peak_memory
from roll.workers.setup import Registered, set_up
from roll.workers.weights import WeightLinks, WholeWeights

if TYPE_CHECKING:
    from roll.workers.offered_weights import OfferedWeights, Offering

HF = "hf"
"""Folder of a checkpoint with the model in Hugging Face format."""

ADAPTER = "adapter"
"""Folder of a checkpoint with LoRA adapters in the format of peft."""


@dataclass(frozen=True, slots=True)
class DataPlace:
    """Which part of a batch a rank works on.

    Attributes:
        rank: Number of the part; ranks that hold parts of one model share it.
        size: Number of parts.
        speaks: Whether this rank's outputs count, of those that share a part.
    """

    rank: int
    size: int
    speaks: bool = True


class TrainWorker:
    """Holds a model, or a share of it, and its optimiser.

    Args:
        config: The run.
        role: ``actor_train`` or ``critic``.
        registered: What user code registered in the driver.

    Raises:
        ConfigError: If the model cannot be loaded.
    """

    def __init__(self, config: TrainerKeys, role: str, registered: Registered) -> None:
        set_up(config, registered)
        join_ranks(config)
        self._strategy = self.make_strategy(config, role)
        if role == "actor_train" and config.optimizer_from is not None:
            self._begin_with(config.optimizer_from)
        self._has_adapters = getattr(config, role).model_args.lora_rank is not None
        self._checkpoints, self._last_step = config.checkpoint_config, config.max_steps
        speaks = worker_context().rank == 0
        self._weights = WholeWeights(self._strategy.named_parameters, speaks, self._strategy.device)
        self._links = WeightLinks(self._weights)
        self._offered: OfferedWeights | None = None

    def make_strategy(self, config: TrainerKeys, role: str) -> TrainStrategy:
        """Return the train strategy; for subclasses (``worker_cls``) that make it in another way."""
        return train_strategy(config, role)

    def _begin_with(self, checkpoint: Path) -> None:
        if not isinstance(self._strategy, HasOptimizer):
            raise TypeError(f"{type(self._strategy).__name__} cannot begin with the optimiser of another run")
        try:
            self._strategy.load_optimizer(checkpoint.expanduser().absolute())
        except (FileNotFoundError, ValueError) as error:
            fix = "name the folder of a checkpoint, step=NNNNNN, that the same strategy wrote on as many ranks."
            raise ConfigError([Problem("optimizer_from", f"{error}", fix, str(checkpoint))]) from error

    @property
    def model(self) -> PreTrainedModel:
        """The model itself, for an engine in the same process that samples from it.

        Raises:
            TypeError: The strategy keeps no model as a whole.
        """
        if not isinstance(self._strategy, HasModel):
            raise TypeError(f"{type(self._strategy).__name__} keeps no model that an engine could share")
        return self._strategy.model

    def data_place(self) -> DataPlace:
        """Return which part of a batch this rank works on."""
        return data_place_of(self._strategy)

    def compute_log_probs(self, batch: TensorDict) -> Tensor:
        """Return log-probs under the current weights, ``[rows, sequence]``."""
        return self._strategy.compute_log_probs(batch)

    def compute_base_log_probs(self, batch: TensorDict) -> Tensor:
        """Return log-probs with LoRA adapters switched off, ``[rows, sequence]``.

        Raises:
            TypeError: The strategy cannot switch them off.
        """
        if not isinstance(self._strategy, HasAdapters):
            raise TypeError(f"{type(self._strategy).__name__} cannot compute without its adapters")
        with self._strategy.adapters_disabled():
            return self._strategy.compute_log_probs(batch)

    def compute_values(self, batch: TensorDict) -> Tensor:
        """Return a critic's values, ``[rows, sequence]``."""
        return self._strategy.compute_values(batch)

    def compute_divergence(self, batch: TensorDict) -> Tensor:
        """Return the divergence from the reference over the vocabulary, ``[rows, sequence]``."""
        return self._strategy.compute_divergence(batch)

    def measure_from(self, heads: Sequence[tuple[Tensor, Tensor | None]], divergence: Divergence) -> None:
        """Take over the output layers of frozen models, each ``weight`` ``[vocabulary, hidden]`` and bias."""
        self._strategy.measure_from(*(self._layer(*head) for head in heads), divergence=divergence)

    def _layer(self, weight: Tensor, bias: Tensor | None) -> nn.Linear:
        head = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta", dtype=weight.dtype)
        head.weight = nn.Parameter(weight.to(self._strategy.device), requires_grad=False)
        if bias is not None:
            head.bias = nn.Parameter(bias.to(self._strategy.device), requires_grad=False)
        return head

    def train_step(self, batch: TensorDict, loss: Loss, totals: BatchTotals) -> dict[str, float]:
        """Take one optimiser step on this rank's rows of a batch with ``totals``."""
        return self._strategy.train_step(batch, loss, totals)

    def save(self, directory: Path) -> None:
        """Write weights, optimiser, schedule and random state, and the model in Hugging Face format beside them.

        ``checkpoint_config`` says which of both, and whether the model is written in Megatron-Core's format too. LoRA
        adapters are written in the format of peft; the Hugging Face model has them merged.
        """
        if self._checkpoints.contents == "all":
            self._strategy.save_checkpoint(directory)
        step = step_of(directory)
        is_last = step is None or step >= self._last_step
        if self._checkpoints.has_hf_model(is_last=is_last):
            self._strategy.save_hf(directory / HF)
        if self._checkpoints.has_megatron_model(is_last=is_last) and isinstance(self._strategy, HasMegatronModel):
            self._strategy.save_megatron(directory / MEGATRON_FOLDER, step or 0)
        if self._has_adapters:
            self._strategy.save_adapters(directory / ADAPTER)

    def export(self, directory: Path) -> None:
        """Write the model alone, in Hugging Face format; LoRA adapters are merged into it."""
        self._strategy.save_hf(directory)

    def load(self, directory: Path) -> None:
        """Restore what :meth:`save` wrote."""
        self._strategy.load_checkpoint(directory)

    def offload(self, weights: bool, optimizer: bool) -> None:
        """Give the device to others; the pipeline says when."""
        self._strategy.offload(weights=weights, optimizer=optimizer)

    def reload(self, weights: bool, optimizer: bool) -> None:
        """Take back what was moved."""
        self._strategy.reload(weights=weights, optimizer=optimizer)

    def peak_memory(self) -> float:
        """Return the most bytes this worker had since the last call."""
        return peak_memory()

    def fingerprints(self, dtype: torch.dtype | None) -> Fingerprints:
        """Return fingerprints of the weights as engines get them, from the rank that sends."""
        return self._links.fingerprints(dtype)

    def open_weights(
        self,
        link: str,
        receivers: Mapping[str, Place],
        settings: WeightSyncSettings,
        wire_dtype: torch.dtype | None,
        bucket_bytes: int,
    ) -> WeightOffer | None:
        """Make a link to engines; see :class:`roll.workers.weights.WeightLinks`."""
        return self._links.open(link, receivers, settings, wire_dtype, bucket_bytes)

    def send_weights(self, link: str, version: int) -> dict[str, float]:
        """Send the weights of now as ``version`` over a link."""
        return self._links.send(link, version)

    def close_weights(self, link: str) -> None:
        """Close a link."""
        self._links.close(link)

    def offer_weights(self, offering: Offering, version: int) -> None:
        """Offer the weights of now to engines of other programs."""
        if self._offered is None:
            # Here alone: it needs Ray, which is an extra.
            from roll.workers.offered_weights import OfferedWeights

            self._offered = OfferedWeights(self._weights)
        self._offered.offer(offering, version)

    def stop_offering(self) -> None:
        """Send nothing more to engines of other programs."""
        if self._offered is not None:
            self._offered.close()

    def close(self) -> None:
        """Close all links and leave the ranks."""
        self.stop_offering()
        self._links.close_all()
        leave_ranks()


class ScoreWorker:
    """Holds a frozen model, or a share of it.

    Args:
        config: The run.
        registered: What user code registered in the driver.
        role: ``reference``, ``teacher``, or one of ``teachers``.

    Raises:
        ConfigError: If the model cannot be loaded.
    """

    def __init__(self, config: TrainerKeys, registered: Registered, role: str = "reference") -> None:
        set_up(config, registered)
        join_ranks(config)
        self._config = config
        self._role = role
        self._scorer = self.make_scorer(config, role)

    def make_scorer(self, config: TrainerKeys, role: str) -> ScoreStrategy:
        """Return what scores; for subclasses (``worker_cls``) that make it in another way."""
        return frozen_scorer(config, role)

    def data_place(self) -> DataPlace:
        """Return which part of a batch this rank works on."""
        return data_place_of(self._scorer)

    def compute_log_probs(self, batch: TensorDict) -> Tensor:
        """Return log-probs, ``[rows, sequence]``."""
        return self._scorer.compute_log_probs(batch)

    def compute_states(self, batch: TensorDict) -> Tensor:
        """Return the last hidden states, ``[rows, sequence, hidden]``."""
        return self._scorer.compute_states(batch)

    @torch.no_grad()
    def compute_top(self, batch: TensorDict, k: int) -> Tensor:
        """Return the likeliest tokens at each token of the mask, ``[rows, sequence, 2 k + 1]`` float64.

        First ``k`` token ids, then the log-probs of the buckets that they make
        (:func:`roll.algorithms.distillation.top_k`); 0 outside the mask. Every rank must call it.
        """
        states, (weight, bias) = self._scorer.compute_states(batch), self.head()
        mask = batch["response_mask"].bool()
        found = torch.zeros(*mask.shape, 2 * min(k, len(weight)) + 1, dtype=torch.float64)
        before, parts = states[mask], []
        for chunk in before.split(max(1, MAX_LOGITS // len(weight))):
            logits = nn.functional.linear(chunk.to(weight), weight, bias)
            ids, buckets = top_k(log_softmax(logits, self._config.compared_temperature), k)
            parts.append(torch.cat((ids.double(), buckets.double()), dim=-1).cpu())
        if parts:
            found[mask] = torch.cat(parts)
        return found

    def head(self) -> tuple[Tensor, Tensor | None]:
        """Return weight ``[vocabulary, hidden]`` and bias of the output layer."""
        if isinstance(self._scorer, HasHead):
            return self._scorer.head()
        # Some scorers have the head in parts, and no rank the whole.
        model = self._scorer.model if isinstance(self._scorer, HasModel) else load_role_model(self._config, self._role)
        layer: Any = model.get_output_embeddings()
        bias = getattr(layer, "bias", None)
        return _whole(layer.weight), None if bias is None else _whole(bias)

    def offload(self, weights: bool, optimizer: bool) -> None:
        """Give the device to others; the pipeline says when."""
        self._scorer.offload()

    def reload(self, weights: bool, optimizer: bool) -> None:
        """Take back what was moved."""
        self._scorer.reload()

    def peak_memory(self) -> float:
        """Return the most bytes this worker had since the last call."""
        return peak_memory()

    def close(self) -> None:
        """Leave the ranks."""
        leave_ranks()


def data_place_of(strategy: object) -> DataPlace:
    """Return the place of a strategy that says it; of others, every rank has a part of its own."""
    if isinstance(strategy, SharesRows):
        return DataPlace(strategy.data_rank, strategy.data_size, strategy.speaks)
    context = worker_context()
    return DataPlace(context.rank, context.size) if context.own_process else DataPlace(0, 1)


def join_ranks(config: RunConfig) -> None:
    """Make the ranks of this worker's role one ``torch.distributed`` group, where there are several."""
    context = worker_context()
    if context.own_process and context.size > 1:
        init_process_group(timeout=config.rpc_timeout)


def leave_ranks() -> None:
    """End the group."""
    if worker_context().own_process and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _whole(tensor: Tensor) -> Tensor:
    """Return a tensor that may be sharded over ranks as one; every rank must call it."""
    gather = getattr(tensor, "full_tensor", None)
    return (tensor if gather is None else gather()).detach()
