"""Makes the engine of a run."""

from __future__ import annotations

from roll.config.errors import ConfigError, Problem
from roll.strategies.base import GenerationStrategy
from roll.strategies.generation.hf_infer.options import HfInferOptions, UnusableOptionError
from roll.strategies.generation.hf_infer.strategy import HfInferStrategy
from roll.strategies.jobs import EngineJob


def engine(job: EngineJob) -> GenerationStrategy:
    """Return an engine around the trainer's own model, where it is in this process, or a copy.

    Raises:
        ConfigError: An option is unknown, or cannot be had with this model or here.
    """
    options = HfInferOptions.from_mapping(job.strategy_config, job.path)
    model = job.shared_model if job.shared_model is not None else job.load()
    try:
        return HfInferStrategy(
            model,
            activity=job.activity,
            max_slots=job.max_slots,
            max_length=job.max_length,
            max_prefill_tokens=options.max_prefill_tokens,
            draft_tokens=options.draft_tokens,
            pack_weights=options.pack_weights,
            torch_compile=options.torch_compile,
            decode=job.decode,
            tokenizer=job.tokenizer,
        )
    except UnusableOptionError as error:
        problem = Problem(f"{job.path}.{error.option}", f"{error}.", "leave it out.", getattr(options, error.option))
        raise ConfigError([problem]) from error
