"""Strategies by name: what a description names is imported and called here, and what it makes is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roll.config.strategies import STRATEGIES, Named, named
from roll.strategies.base import GenerationStrategy, ScoreStrategy, TrainStrategy

if TYPE_CHECKING:
    from roll.strategies.jobs import EngineJob, ScorerJob, TrainerJob


def build_engine(name: str, job: EngineJob) -> GenerationStrategy:
    """Make the engine of this name.

    Raises:
        TypeError: What its builder makes is no engine; says what it lacks.
    """
    engine = _built(name, STRATEGIES.get(name).engine, job)
    if not isinstance(engine, GenerationStrategy):
        raise _unfit(name, engine, GenerationStrategy)
    return engine


def build_trainer(name: str, job: TrainerJob) -> TrainStrategy:
    """Make the trainer of this name.

    Raises:
        TypeError: What its builder makes is no trainer; says what it lacks.
    """
    trainer = _built(name, STRATEGIES.get(name).trainer, job)
    if not isinstance(trainer, TrainStrategy):
        raise _unfit(name, trainer, TrainStrategy)
    return trainer


def build_scorer(name: str, job: ScorerJob) -> ScoreStrategy:
    """Make the scorer of this name.

    Raises:
        TypeError: What its builder makes is no scorer; says what it lacks.
    """
    scorer = _built(name, STRATEGIES.get(name).scorer, job)
    if not isinstance(scorer, ScoreStrategy):
        raise _unfit(name, scorer, ScoreStrategy)
    return scorer


def _built(name: str, builder: Named | None, job: object) -> object:
    if builder is None:
        raise TypeError(f"strategy {name!r} has nothing that takes a {type(job).__name__}")
    built: object = named(builder)(job)
    return built


def _unfit(name: str, built: object, protocol: type) -> TypeError:
    wanted = [member for member in dir(protocol) if not member.startswith("_")]
    lacks = ", ".join(member for member in wanted if not hasattr(built, member))
    return TypeError(f"strategy {name!r} made a {type(built).__name__}, which is no {protocol.__name__}: add {lacks}")
