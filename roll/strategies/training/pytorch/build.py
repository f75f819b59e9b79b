"""Makes the trainer and the scorers of a run."""

from __future__ import annotations

import torch

from roll.config.errors import ConfigError, Problem
from roll.strategies.base import ScoreStrategy, TrainStrategy
from roll.strategies.compilers import missing_compiler
from roll.strategies.jobs import ScorerJob, TrainerJob
from roll.strategies.training.pytorch.loading import load_on_first_rank
from roll.strategies.training.pytorch.options import FsdpOptions
from roll.strategies.training.pytorch.scoring import Scorer
from roll.strategies.training.pytorch.train import FsdpTrainStrategy


def trainer(job: TrainerJob) -> TrainStrategy:
    """Return a trainer of a model that is loaded on every rank, or on the first alone.

    Raises:
        ConfigError: The options are wrong, or the model cannot be loaded.
    """
    fsdp = _options(job)
    model = load_on_first_rank(job.load, job.adapted) if fsdp.meta_init else job.adapted(job.load())
    return FsdpTrainStrategy(model, job.options, predicts=job.predicts, fsdp=fsdp)


def scorer(job: ScorerJob) -> ScoreStrategy:
    """Return what scores with the policy before training, whatever options it would be trained with."""
    return _scorer(job, FsdpOptions())


def fsdp_scorer(job: ScorerJob) -> ScoreStrategy:
    """Return what scores with a model that its ranks share.

    Raises:
        ConfigError: The options are wrong, or the model cannot be loaded.
    """
    return _scorer(job, _options(job))


def _options(job: TrainerJob | ScorerJob) -> FsdpOptions:
    options = FsdpOptions.from_mapping(job.strategy_config, job.path)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if options.torch_compile and (missing := missing_compiler(device)):
        raise ConfigError([Problem(f"{job.path}.torch_compile", f"{missing}.", "leave it out.", True)])
    return options


def _scorer(job: ScorerJob, fsdp: FsdpOptions) -> Scorer:
    model = load_on_first_rank(job.load) if fsdp.meta_init else job.load()
    return Scorer(model, fsdp=fsdp, **job.options.arguments())
