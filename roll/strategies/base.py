"""What an engine, a trainer and a scorer must offer, and what they may offer besides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeVar, runtime_checkable

from roll.generation import Completion, GenerationRequest, ScoringRequest, TokenScores

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict
    from transformers import PreTrainedModel

    from roll.algorithms.distillation import Divergence
    from roll.strategies.fingerprints import Fingerprints

Answer = TypeVar("Answer")

EXTREMES: Final = ("_max", "_min")
"""How the name of a metric ends that is an extreme; of several, the largest or smallest counts, never sum or mean."""


Prediction = Literal["log_probs", "values"]
"""What a model says of tokens: a policy log-probs, a critic values."""

Classifier = Literal["token", "sequence"]
"""What a model that predicts values is in ``transformers``: a classifier of tokens, whose head has a bias, or of whole
sequences, whose head has none. Both have one label."""


@dataclass(slots=True)
class WeightUpdate:
    """New weights for an engine: Hugging Face names and full tensors, with the version they make."""

    version: int
    named_tensors: Iterable[tuple[str, torch.Tensor]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """Counts over the whole batch of one optimiser step, all micro-batches and ranks together.

    Attributes:
        tokens: Trained tokens: what losses divide by.
        sequences: Sequences with a trained token: what losses divide by.
        measured_tokens: Trained tokens of the rows that are computed: what mean metrics divide by.
    """

    tokens: int
    sequences: int
    measured_tokens: int


@runtime_checkable
class GenerationStrategy(Protocol):
    """Samples completions. Safe to call from many coroutines of one event loop at once."""

    async def generate(self, request: GenerationRequest) -> Completion:
        """Return the completion of ``request``; raises ``ValueError`` if the prompt does not fit."""
        ...

    async def abort(self, request_id: str) -> None:
        """End a running request; its ``generate`` returns what it has with ``finish_reason="abort"``."""
        ...

    async def release(self, session: str) -> None:
        """Forget the prefix kept for ``session``."""
        ...

    async def pause(self) -> None:
        """Stop stepping; running requests freeze."""
        ...

    async def resume(self) -> None:
        """Continue stepping."""
        ...

    async def sleep(self) -> None:
        """Stop stepping and give the device's memory to others."""
        ...

    async def wake(self, tags: Sequence[str] | None = None) -> None:
        """Take back ``weights``, ``kv_cache`` or all; stepping continues when both are there."""
        ...

    async def update_weights(self, update: WeightUpdate) -> None:
        """Load new weights, then drop every cached prefix."""
        ...

    async def close(self) -> None:
        """Free everything; running requests are aborted."""
        ...


@runtime_checkable
class ScoresTokens(GenerationStrategy, Protocol):
    """An engine that can also say how likely given tokens are."""

    @property
    def vocabulary(self) -> int:
        """How many tokens its distributions are over."""
        ...

    async def score(self, request: ScoringRequest) -> TokenScores:
        """Return log-probs of given tokens; raises ``ValueError`` if the sequence does not fit."""
        ...


@runtime_checkable
class TellsFingerprints(Protocol):
    """An engine that can tell which weights it computes with, so that they can be compared with the trainer's."""

    async def fingerprints(self) -> Fingerprints:
        """Return fingerprints of its weights under their Hugging Face names."""
        ...


class ReceivesWeights(Protocol):
    """An end of a connection to the trainer, such as ``roll.distributed.weight_sync.WeightReceiver``."""

    def receive(self) -> AbstractContextManager[WeightUpdate]:
        """Receive one sync; all tensors must be read."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


@runtime_checkable
class LoadsInProcesses(Protocol):
    """An engine with processes of its own, to each of which the trainer can send weights without a detour."""

    async def call_workers(self, function: Callable[[int], Answer]) -> list[Answer]:
        """Call ``function`` with its rank in each process; return the results in their order."""
        ...

    async def connect_workers(self, make_receiver: Callable[[int], ReceivesWeights]) -> None:
        """Give each process an end of its own of a weight sync, for :meth:`receive_weights`."""
        ...

    async def disconnect_workers(self) -> None:
        """Close these ends."""
        ...

    async def receive_weights(self) -> int:
        """Load what the trainer sends to the processes; return the version."""
        ...


class Loss(Protocol):
    """What a train strategy minimises: an aggregated scalar and metrics, from new outputs and a micro-batch.

    Outputs are what the trained model says of each token, ``[batch, sequence]``: log-probs of a policy, values of a
    critic.

    A loss divides by counts over the *whole* batch (:meth:`totals`), so the sum over micro-batches is the loss of the
    batch, however it was split.
    """

    @property
    def needs_entropy(self) -> bool:
        """Whether the strategy must compute per-token entropies."""
        ...

    def totals(self, batch: TensorDict) -> BatchTotals:
        """Return the global normalisers of ``batch``."""
        ...

    def contributing_rows(self, batch: TensorDict) -> torch.Tensor | None:
        """Return which rows can have a gradient, ``[batch]`` bool, or ``None`` if all can; the others are skipped."""
        ...

    def __call__(
        self, outputs: torch.Tensor, entropy: torch.Tensor | None, batch: TensorDict, totals: BatchTotals, /
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return this micro-batch's share of the loss (scalar) and of each metric (shares sum to the batch's)."""
        ...


@runtime_checkable
class TrainStrategy(Protocol):
    """Holds trainable weights. Losses are normalised by global counts, so micro-batches never change a gradient."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        ...

    def compute_log_probs(self, batch: TensorDict) -> torch.Tensor:
        """Return log p(token t | tokens < t), ``[batch, sequence]``, 0 where the response mask is 0."""
        ...

    def compute_values(self, batch: TensorDict) -> torch.Tensor:
        """Return a critic's value of the state before token t, ``[batch, sequence]``, 0 outside the response mask."""
        ...

    def compute_divergence(self, batch: TensorDict) -> torch.Tensor:
        """Return the divergence from the reference over the vocabulary, ``[batch, sequence]``; reads ``ref_states``."""
        ...

    def measure_from(self, *heads: torch.nn.Module, divergence: Divergence = ...) -> None:
        """Let batches say what their divergence is measured from (:mod:`roll.strategies.training.comparing`).

        Args:
            heads: Output layers of the frozen models whose states batches have.
            divergence: Which one.
        """
        ...

    def train_step(self, batch: TensorDict, loss: Loss, totals: BatchTotals | None = None) -> dict[str, float]:
        """One optimiser step over ``batch`` (this rank's share of it); returns metrics."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Stream full parameters, of any shape, under their Hugging Face names."""
        ...

    def save_checkpoint(self, directory: Path) -> None:
        """Write weights, optimizer, schedule and random state."""
        ...

    def load_checkpoint(self, directory: Path) -> None:
        """Restore what :meth:`save_checkpoint` wrote, exactly."""
        ...

    def save_hf(self, directory: Path) -> None:
        """Write weights and config in Hugging Face format."""
        ...

    def save_adapters(self, directory: Path) -> None:
        """Write LoRA adapters in the format of peft; called where a role has some."""
        ...

    def offload(self, *, weights: bool = True, optimizer: bool = True) -> None:
        """Move weights with gradients, or optimiser states, to main memory; nothing works until :meth:`reload`."""
        ...

    def reload(self, *, weights: bool = True, optimizer: bool = True) -> None:
        """Take back what :meth:`offload` moved, exactly as it was."""
        ...


@runtime_checkable
class ScoreStrategy(Protocol):
    """Holds frozen weights."""

    def compute_log_probs(self, batch: TensorDict) -> torch.Tensor:
        """Return log p(token t | tokens < t), ``[batch, sequence]``, 0 where the response mask is 0."""
        ...

    def compute_states(self, batch: TensorDict) -> torch.Tensor:
        """Return the hidden states before each token of the mask, ``[batch, sequence, hidden]``, 0 elsewhere."""
        ...

    def offload(self) -> None:
        """Move the weights to main memory; nothing works until :meth:`reload`."""
        ...

    def reload(self) -> None:
        """Take them back."""
        ...


@runtime_checkable
class SharesRows(Protocol):
    """A trainer or scorer some of whose ranks work on the same rows. Of others, every rank has rows of its own."""

    @property
    def data_rank(self) -> int:
        """Which share of a batch this rank computes, below :attr:`data_size`."""
        ...

    @property
    def data_size(self) -> int:
        """Into how many shares a batch is dealt; ranks with the same :attr:`data_rank` get the same rows."""
        ...

    @property
    def speaks(self) -> bool:
        """Whether this rank's outputs count: true on one of the ranks that share rows."""
        ...


@runtime_checkable
class HasAdapters(Protocol):
    """A trainer of LoRA adapters that can compute without them."""

    def adapters_disabled(self) -> AbstractContextManager[None]:
        """Score with the base model inside this context."""
        ...


@runtime_checkable
class HasOptimizer(Protocol):
    """A trainer that can begin with the optimiser of another run."""

    def load_optimizer(self, directory: Path) -> None:
        """Load weights and moments of a checkpoint of the same strategy; the schedule stays that of this run."""
        ...


MEGATRON_FOLDER: Final = "megatron"
"""Folder of a checkpoint with the model in Megatron-Core's format."""


@runtime_checkable
class HasMegatronModel(Protocol):
    """A trainer that writes models in the format of Megatron-Core."""

    def save_megatron(self, directory: Path, step: int) -> None:
        """Write the weights of a training step to a folder that all ranks see."""
        ...


@runtime_checkable
class HasHead(Protocol):
    """A scorer whose model does not have its output layer as one tensor, and that can put it together."""

    def head(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return weight ``[vocabulary, hidden]`` and bias of the output layer; every rank must call it."""
        ...


@runtime_checkable
class HasModel(Protocol):
    """A trainer or scorer around a Hugging Face model of this process, whole or sharded."""

    @property
    def model(self) -> PreTrainedModel:
        """The model."""
        ...
