"""Strategies by name: what a description names is imported and called here, and what it makes is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from roll.config.strategies import STRATEGIES, Named, named
from roll.strategies.base import GenerationStrategy, ScoreStrategy, TrainStrategy

if TYPE_CHECKING:
    from roll.strategies.jobs import EngineJob, ScorerJob, TrainerJob

Built = TypeVar("Built")


def build_engine(name: str, job: EngineJob) -> GenerationStrategy:
    """Make the engine of this name.

    Raises:
        TypeError: What its builder makes is no engine; says what it lacks.
    """
    return _built(name, STRATEGIES.get(name).engine, job, GenerationStrategy)  # type: ignore[type-abstract]


def build_trainer(name: str, job: TrainerJob) -> TrainStrategy:
    """Make the trainer of this name.

    Raises:
        TypeError: What its builder makes is no trainer; says what it lacks.
    """
    return _built(name, STRATEGIES.get(name).trainer, job, TrainStrategy)  # type: ignore[type-abstract]


def build_scorer(name: str, job: ScorerJob) -> ScoreStrategy:
    """Make the scorer of this name.

    Raises:
        TypeError: What its builder makes is no scorer; says what it lacks.
    """
    return _built(name, STRATEGIES.get(name).scorer, job, ScoreStrategy)  # type: ignore[type-abstract]


def _built(name: str, builder: Named | None, job: object, protocol: type[Built]) -> Built:
    if builder is None:
        raise TypeError(f"strategy {name!r} has nothing that takes a {type(job).__name__}")
    built: object = named(builder)(job)
    if not isinstance(built, protocol):
        wanted = [member for member in dir(protocol) if not member.startswith("_")]
        lacks = ", ".join(member for member in wanted if not hasattr(built, member))
        raise TypeError(
            f"strategy {name!r} made a {type(built).__name__}, which is no {protocol.__name__}: add {lacks}"
        )
    return built
