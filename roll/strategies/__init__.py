"""Engines that generate, and what trains and scores. Importing this loads none of them.

A strategy describes itself in one record, and is found by its name.
"""

from roll.config.strategies import STRATEGIES, Ability, StrategyDescription, register_strategy
from roll.strategies.base import GenerationStrategy, ScoreStrategy, TrainStrategy
from roll.strategies.jobs import EngineJob, ScoreOptions, ScorerJob, TrainerJob

__all__ = [
    "STRATEGIES",
    "Ability",
    "EngineJob",
    "GenerationStrategy",
    "ScoreOptions",
    "ScoreStrategy",
    "ScorerJob",
    "StrategyDescription",
    "TrainStrategy",
    "TrainerJob",
    "register_strategy",
]
