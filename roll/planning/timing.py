"""How long a step takes, from rooflines: arithmetic, and what memory gives, whichever is slower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from roll.planning.devices import Gpu
from roll.planning.engine_memory import Engine
from roll.planning.roles import RoleDemand

TRAINING_SHARE: Final = 0.4
"""Part of the peak arithmetic that training reaches; an assumption, as good runs report it."""
PREFILL_SHARE: Final = 0.5
DECODE_SHARE: Final = 0.6
"""Part of the peak bandwidth that decoding reaches."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a step computes.

    Attributes:
        samples: Sequences.
        prompt: Tokens of a prompt.
        response: Tokens of a response, on average.
        epochs: Times that each is learned from.
    """

    samples: int
    prompt: int
    response: int
    epochs: int = 1

    @property
    def tokens(self) -> int:
        """All tokens of a step."""
        return self.samples * (self.prompt + self.response)


@dataclass(frozen=True, slots=True)
class StageTime:
    """One stage of a step.

    Attributes:
        stage: What it does.
        seconds: How long.
        tokens_per_second: Of all its devices together.
    """

    stage: str
    seconds: float
    tokens_per_second: float


def stage_times(demands: Sequence[RoleDemand], work: Work, gpu: Gpu) -> list[StageTime]:
    """Return how long the stages of a step take, one after another."""
    found = []
    for demand in demands:
        if demand.engine is not None and not demand.reads:
            seconds = _sampling(demand.engine, demand.replicas, work, gpu)
            found.append(StageTime("sampling", seconds, work.samples * work.response / seconds))
    for demand in demands:
        training = demand.training
        if demand.engine is not None and demand.reads:
            seconds = _reading(demand.engine, demand.replicas, work.tokens, gpu)
            found.append(StageTime(f"scoring by {demand.role}", seconds, work.tokens / seconds))
        if training is None:
            continue
        count = len(demand.devices)
        forward = 2.0 * demand.shape.active + 2.0 * demand.shape.layers * demand.shape.queries * training.row_tokens
        if training.trained:
            # Old log-probs or values once, then a forward and two backward passes, and another forward if recomputed.
            factor = 1 + work.epochs * (3 + training.recomputes) if demand.role != "sft" else 3 + training.recomputes
            stage = "training" if demand.role == "actor_train" else f"training of {demand.role}"
        else:
            factor, stage = 1, f"scoring by {demand.role}"
        seconds = factor * forward * work.tokens / (count * gpu.tflops * 1e12 * TRAINING_SHARE)
        found.append(StageTime(stage, seconds, work.tokens / seconds))
    return found


def _sampling(engine: Engine, replicas: int, work: Work, gpu: Gpu) -> float:
    devices = engine.tensor * engine.pipeline
    own = -(-work.samples // replicas)
    at_once = max(1, min(own, engine.at_once(gpu.bytes)))
    read = engine.width * engine.shape.active / devices
    cached = at_once * (work.prompt + work.response / 2) * engine.token_bytes
    step = (read + cached) / (gpu.tb_per_second * 1e12 * DECODE_SHARE)
    arithmetic = 2.0 * engine.shape.active * at_once / (devices * gpu.tflops * 1e12 * PREFILL_SHARE)
    decoding = max(step, arithmetic) * work.response * (own / at_once)
    return decoding + _reading(engine, 1, own * work.prompt, gpu)


def _reading(engine: Engine, replicas: int, tokens: int, gpu: Gpu) -> float:
    devices = replicas * engine.tensor * engine.pipeline
    return 2.0 * engine.shape.active * tokens / (devices * gpu.tflops * 1e12 * PREFILL_SHARE)
