"""Makes the engine of a run."""

from __future__ import annotations

from roll.strategies.base import GenerationStrategy
from roll.strategies.generation.sglang.strategy import SglangStrategy
from roll.strategies.jobs import EngineJob


def engine(job: EngineJob) -> GenerationStrategy:
    """Return an engine that loads the model from its folder.

    Raises:
        ConfigError: The options are wrong.
    """
    return SglangStrategy(
        job.folder(),
        dtype=job.dtype,
        strategy_config=job.strategy_config,
        seed=job.seed,
        max_slots=job.max_slots,
        max_length=job.max_length,
        decode=job.decode,
    )
