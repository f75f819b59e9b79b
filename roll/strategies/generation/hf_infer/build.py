"""Makes the engine of a run."""

from __future__ import annotations

from roll.strategies.base import GenerationStrategy
from roll.strategies.generation.hf_infer.strategy import HfInferStrategy
from roll.strategies.jobs import EngineJob


def engine(job: EngineJob) -> GenerationStrategy:
    """Return an engine around the trainer's own model, where it is in this process, or a copy."""
    model = job.shared_model if job.shared_model is not None else job.load()
    return HfInferStrategy(
        model, activity=job.activity, max_slots=job.max_slots, max_length=job.max_length, decode=job.decode
    )
