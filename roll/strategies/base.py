"""What a generation engine and a train engine must offer; every strategy implements one of the two protocols."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict

EXTREMES: Final = ("_max", "_min")
"""How the name of a metric ends that is an extreme; of several, the largest or smallest counts, never sum or mean."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn.

    Order of application, as in vLLM and Hugging Face: repetition penalty, logits / temperature, then top-k, then top-p,
    then renormalise.

    Attributes:
        max_new_tokens: Upper bound on sampled tokens, the stop token included.
        temperature: 0 means greedy (log-probs are then those of the untempered distribution).
        top_p: Keep the smallest set of tokens whose probability reaches this, in (0, 1].
        top_k: Keep the k most likely tokens; 0 or -1 keeps all.
        stop_token_ids: Sampling ends after one of these is drawn; it stays in the completion.
        repetition_penalty: Of every token that the prompt or the completion already has, a positive logit is divided by
            this and a negative one multiplied (Keskar et al. 2019, "CTRL"); 1 changes nothing.
        stop_strings: Sampling ends with the token that completes one of these in the completion's text, special tokens
            written out; it stays in the completion.
    """

    max_new_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_token_ids: tuple[int, ...] = ()
    repetition_penalty: float = 1.0
    stop_strings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request for a completion: token ids in.

    Attributes:
        request_id: Unique among running requests.
        prompt_ids: The whole prompt, history included (an engine finds the shared prefix itself).
        sampling: How to sample.
        seed: Keys the sampling noise. The same seed, prompt and weights give the same tokens whenever and beside
            whatever the request runs.
        session: Requests of one trajectory share it, so that an engine keeps their prefix; ``None`` for none.
        priority: Smaller runs earlier when slots are scarce.
    """

    request_id: str
    prompt_ids: list[int]
    sampling: SamplingParams
    seed: int = 0
    session: str | None = None
    priority: int = 0


@dataclass(slots=True)
class Completion:
    """What an engine returns: ids and exact sampler log-probabilities out.

    Attributes:
        token_ids: Sampled tokens, including the stop token if one was drawn.
        logprobs: Natural-log probability of each token under the distribution it was drawn from.
        finish_reason: ``"stop"``, ``"length"`` or ``"abort"``.
        policy_version: Oldest and newest weights used.
        cached_tokens: Prompt tokens whose keys and values were reused.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    policy_version: tuple[int, int] = (0, 0)
    cached_tokens: int = 0


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

    def compute_log_probs(self, batch: TensorDict) -> torch.Tensor:
        """Return log p(token t | tokens < t), ``[batch, sequence]``, 0 where the response mask is 0."""
        ...

    def compute_values(self, batch: TensorDict) -> torch.Tensor:
        """Return a critic's value of the state before token t, ``[batch, sequence]``, 0 outside the response mask."""
        ...

    def compute_divergence(self, batch: TensorDict) -> torch.Tensor:
        """Return the divergence from the reference over the vocabulary, ``[batch, sequence]``; reads ``ref_states``."""
        ...

    def train_step(self, batch: TensorDict, loss: Loss, totals: BatchTotals | None = None) -> dict[str, float]:
        """One optimiser step over ``batch`` (this rank's share of it); returns metrics."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Stream full parameters under their Hugging Face names."""
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

    def offload(self, *, weights: bool = True, optimizer: bool = True) -> None:
        """Move weights with gradients, or optimiser states, to main memory; nothing works until :meth:`reload`."""
        ...

    def reload(self, *, weights: bool = True, optimizer: bool = True) -> None:
        """Take back what :meth:`offload` moved, exactly as it was."""
        ...
