"""What to change where a job does not fit, each change tried by the same arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from roll.config.strategies import named
from roll.planning.activations import step_bytes
from roll.planning.roles import RoleDemand
from roll.planning.training_states import Training


@dataclass(frozen=True, slots=True)
class Advice:
    """A change that makes a role smaller.

    Attributes:
        change: What to set.
        saved: Bytes that it saves on each device.
    """

    change: str
    saved: int


def advice_for(demand: RoleDemand, device: int) -> list[Advice]:
    """Return what makes a role smaller, what saves most first.

    Args:
        demand: The role.
        device: Bytes of a device.
    """
    if demand.engine is not None:
        return list(_for_engine(demand, device))
    assert demand.training is not None
    now = _bytes(demand)
    tried = [
        Advice(change, now - _bytes(replace(demand, training=smaller)))
        for change, smaller in _smaller(demand.role, demand.training)
    ]
    return sorted((each for each in tried if each.saved > now // 50), key=lambda each: -each.saved)


def _bytes(demand: RoleDemand) -> int:
    return 0 if demand.training is None else step_bytes(demand.training)


def _smaller(role: str, training: Training) -> Iterator[tuple[str, Training]]:
    ranks, path = training.division.ranks, f"{role}.strategy_args.strategy_config"
    if not training.half:
        yield f"{role}.model_args.dtype=bf16", replace(training, half=True)
    if training.trained and not training.recomputes:
        yield f"{role}.model_args.disable_gradient_checkpointing=false", replace(training, recomputes=True)
    if training.tokens > training.row_tokens:
        key = f"{role}.training_args.max_tokens_per_microbatch={training.row_tokens}"
        yield key, replace(training, tokens=training.row_tokens)
    if training.scores_vocabulary:
        yield f"{role}.log_prob_chunk_size=1024", replace(training, chunk=1024)
    if training.trained and training.lora_rank is None:
        yield f"{role}.model_args.lora_rank=32", replace(training, lora_rank=32)
    doubled = replace(training, division=replace(training.division, ranks=2 * ranks))
    yield f"twice as many devices for {role} ({2 * ranks})", doubled
    suggests = training.about.smaller
    if suggests is not None:
        yield from named(suggests)(path, training)


def _for_engine(demand: RoleDemand, device: int) -> Iterator[Advice]:
    engine = demand.engine
    assert engine is not None
    path = f"{demand.role}.strategy_args.strategy_config"
    if engine.share is None:
        halved = replace(engine, requests=max(1, engine.requests // 2))
        saved = engine.wanted_cache - halved.wanted_cache
        yield Advice(f"max_running_requests={halved.requests}", saved)
        return
    size = 2 * engine.tensor
    yield Advice(f"{path}.tensor_parallel_size={size}", engine.weights - engine.weights // 2)
    if engine.share > 0.5:
        yield Advice(f"{path}.gpu_memory_utilization=0.5", int((engine.share - 0.5) * device))
