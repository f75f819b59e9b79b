"""What a trainer keeps between two passes: weights, gradients, optimiser states, on its fullest rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from roll.config.strategies import STRATEGIES, StrategyDescription, named
from roll.planning.division import Division
from roll.planning.shapes import ModelShape

FP32, BF16 = 4, 2
MOMENTS: Final = 2 * FP32
"""Of AdamW, per number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How a role computes.

    Attributes:
        strategy: Its strategy.
        options: The options of that.
        shape: Its model.
        division: How it is spread.
        half: Whether it computes in bf16.
        trained: Whether it is trained, or scores only.
        lora_rank: Of adapters; ``None`` trains everything.
        recomputes: Whether activations are computed again in the backward pass.
        recomputed: Parts of a layer that are computed again where layers are not: ``moe``, ``layernorm``.
        packed: Whether rows are laid end to end.
        tokens: Tokens of a pass on a rank, padding included, before they are spread over context ranks.
        row_tokens: Tokens of its longest row.
        chunk: Tokens whose logits are held at once.
        passes: Passes of an optimiser step.
        scores_vocabulary: Whether it has logits; a critic has one number for a token.
        attention: ``fused``, or ``matrix`` where all scores of a row are held.
        adamw: How PyTorch's AdamW steps: ``foreach``, as on GPUs, or ``single``, one tensor at a time.
    """

    strategy: str
    shape: ModelShape
    division: Division
    options: Mapping[str, Any] | None = None
    half: bool = True
    trained: bool = True
    lora_rank: int | None = None
    recomputes: bool = True
    recomputed: frozenset[str] = frozenset()
    packed: bool = False
    tokens: int = 1024
    row_tokens: int = 1024
    chunk: int | None = None
    passes: int = 2
    scores_vocabulary: bool = True
    attention: str = "fused"
    adamw: str = "foreach"

    @property
    def about(self) -> StrategyDescription:
        """What the strategy says of itself."""
        return STRATEGIES.get(self.strategy)


@dataclass(frozen=True, slots=True)
class States:
    """Bytes on a device.

    Attributes:
        weights: Those it computes with.
        gradients: Sums of gradients.
        optimizer: Moments, and fp32 weights beside the others.
        buffers: What is gathered or sent at once in a pass.
        host: In main memory instead.
        update: What is held besides while weights are changed, when no pass holds anything.
    """

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    buffers: int = 0
    host: int = 0
    update: int = 0

    @property
    def resting(self) -> int:
        """What is on the device between two passes."""
        return self.weights + self.gradients + self.optimizer


def states(training: Training) -> States:
    """Return what the fullest rank of a role keeps."""
    memory = training.about.memory
    kept: States = whole_model(training) if memory is None else named(memory)(training)
    return kept


def numbers_of(training: Training) -> tuple[int, int]:
    """Return the numbers of the whole model, and how many of them are trained."""
    whole = training.shape.numbers
    if not training.scores_vocabulary:
        whole -= training.shape.head
    if not training.trained:
        return whole, 0
    if training.lora_rank is None:
        return whole, whole
    adapters = training.shape.adapters(training.lora_rank)
    return whole + adapters, adapters


def whole_model(training: Training) -> States:
    """One process with the whole model."""
    whole, trained = numbers_of(training)
    return States(FP32 * whole, FP32 * trained, MOMENTS * trained, update=adamw_bytes(training, trained))


def adamw_bytes(training: Training, numbers: int, largest: int | None = None) -> int:
    """Return what PyTorch's AdamW holds on the way: roots of second moments, and one tensor at a time their quotients.

    Args:
        training: Says how it steps.
        numbers: Numbers that a rank updates.
        largest: Those of its largest tensor; by default those of the embedding, if that is trained.
    """
    if training.adamw == "foreach":
        return FP32 * numbers
    return 2 * FP32 * min(numbers, training.shape.embedding if largest is None else largest)


def divided(path: str, training: Training, key: str) -> Iterator[tuple[str, Training]]:
    """Try the next larger size of one division, where there are as many ranks.

    Args:
        path: Of the options.
        training: How the role computes now.
        key: The option.
    """
    options = dict(training.options or {})
    size = 2 * int(options.get(key) or 1)
    options[key] = size
    division = Division.of(training.strategy, options, training.division.ranks)
    if division.tensor * division.pipeline * division.context <= division.ranks:
        yield f"{path}.{key}={size}", replace(training, options=options, division=division)
