"""Makes the trainer and the scorer of a run."""

from __future__ import annotations

from roll.strategies.base import ScoreStrategy, TrainStrategy
from roll.strategies.jobs import ScorerJob, TrainerJob
from roll.strategies.training.megatron.options import MegatronOptions
from roll.strategies.training.megatron.scorer import MegatronScorer
from roll.strategies.training.megatron.train import MegatronTrainStrategy


def trainer(job: TrainerJob) -> TrainStrategy:
    """Return a trainer that reads its part of the model from the folder.

    Raises:
        ConfigError: The options are wrong, or there is no model.
    """
    megatron = MegatronOptions.from_mapping(job.strategy_config, job.path)
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
    return MegatronScorer(folder, megatron=megatron, seed=job.seed, **job.options.arguments())
