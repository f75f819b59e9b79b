"""What passes between the protocol and what trains and samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor


class RefusedError(Exception):
    """A request that cannot be done; the client is told why.

    Attributes:
        status: HTTP status, where it is answered at once.
    """

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Example:
    """A sequence to learn from.

    Attributes:
        token_ids: What the model reads.
        inputs: What the loss reads, by name: ``target_tokens``, ``weights``, ``logprobs``, ``advantages``, each
            ``[length]`` and aligned with the tokens: a target is what comes after its token. Where a position has
            several targets, each is ``[length, targets]``.
    """

    token_ids: Sequence[int]
    inputs: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Learned:
    """What a forward pass, and perhaps a backward pass, came to.

    Attributes:
        outputs: For each example, by name, in the shape of its targets: their ``logprobs``, ``elementwise_loss``.
        metrics: ``loss:sum``, and what the loss counts beside it.
    """

    outputs: Sequence[Mapping[str, Tensor]]
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Adam:
    """An optimiser step (Loshchilov & Hutter 2019, "AdamW"); names are those of the protocol."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


@dataclass(frozen=True, slots=True)
class Adapters:
    """Which adapters a client trains.

    Attributes:
        rank: Of each.
        seed: Draws them.
        train_mlp: Whether layers of the feed-forward network have one.
        train_attn: Whether layers of attention have one.
    """

    rank: int
    seed: int = 0
    train_mlp: bool = True
    train_attn: bool = True


@dataclass(frozen=True, slots=True)
class Sampled:
    """Answers to a prompt.

    Attributes:
        sequences: For each, its tokens, their log-probs, and whether a stop ended it.
        prompt_logprobs: Of the prompt's tokens where they were asked for; nothing for the first.
    """

    sequences: Sequence[tuple[Sequence[int], Sequence[float], bool]]
    prompt_logprobs: Sequence[float | None] = field(default_factory=tuple)
