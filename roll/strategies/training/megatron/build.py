"""Makes the trainer and the scorer of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from roll.config.errors import ConfigError, FixableError, Problem
from roll.strategies.base import ScoreStrategy, TrainStrategy
from roll.strategies.jobs import ScorerJob, TrainerJob
from roll.strategies.training.megatron.options import MegatronOptions
from roll.strategies.training.megatron.scorer import MegatronScorer
from roll.strategies.training.megatron.train import MegatronTrainStrategy


def trainer(job: TrainerJob) -> TrainStrategy:
    """Return a trainer that reads its part of the model from the folder.

    Raises:
        ConfigError: The options are wrong, or there is no model, or no checkpoint to load.
    """
    megatron = MegatronOptions.from_mapping(job.strategy_config, job.path)
    with _load_faults_at(job.path, megatron):
        return MegatronTrainStrategy(
            job.folder(),
            job.options,
            predicts=job.predicts,
            megatron=megatron,
            seed=job.seed,
            adapt=job.adapt,
            classifier=job.classifier,
            pad_token_id=job.pad_token_id() if job.predicts == "values" else None,
        )


def scorer(job: ScorerJob) -> ScoreStrategy:
    """Return what scores with a part of the model on every rank.

    Raises:
        ConfigError: The options are wrong, or there is no model.
    """
    folder = job.folder()
    megatron = MegatronOptions.from_mapping(job.strategy_config, job.path)
    with _load_faults_at(job.path, megatron):
        return MegatronScorer(folder, megatron=megatron, seed=job.seed, **job.options.arguments())


@contextmanager
def _load_faults_at(path: str, megatron: MegatronOptions) -> Iterator[None]:
    """Make what is wrong with the checkpoint that is loaded a problem of the key that names it."""
    try:
        yield
    except FixableError as error:
        raise ConfigError([Problem(f"{path}.load", error.message, error.fix, megatron.load)]) from error
