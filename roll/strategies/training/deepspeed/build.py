"""Makes the trainer and the scorer of a run."""

from __future__ import annotations

from roll.strategies.base import ScoreStrategy, TrainStrategy
from roll.strategies.jobs import ScorerJob, TrainerJob
from roll.strategies.training.deepspeed.infer import DeepSpeedInferStrategy
from roll.strategies.training.deepspeed.train import DeepSpeedTrainStrategy


def trainer(job: TrainerJob) -> TrainStrategy:
    """Return a trainer whose model is shared out while it loads.

    Raises:
        ConfigError: The options are wrong, or the model cannot be loaded.
    """
    # Adapters need the weights: with them the model is loaded whole, and shared out afterwards.
    model = job.load if job.adapt is None else job.adapt(job.load())
    return DeepSpeedTrainStrategy(model, job.options, predicts=job.predicts, config=job.strategy_config, path=job.path)


def scorer(job: ScorerJob) -> ScoreStrategy:
    """Return what scores with a frozen model, shared out where the options say so.

    Raises:
        ConfigError: The options are wrong, or the model cannot be loaded.
    """
    return DeepSpeedInferStrategy(job.load, config=job.strategy_config, path=job.path, **job.options.arguments())
