"""Checks of an RLVR run that need no model: the user's modules, algorithms, verifiers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from roll.config import ConfigError, EvaluationConfig, Problem, RLVRConfig
from roll.config.answering import AnsweringConfig
from roll.config.errors import Absent
from roll.pipelines.checks.algorithms import algorithm_problems
from roll.pipelines.checks.common import sampling_problems, template_problems
from roll.pipelines.checks.grading import grading_problems, tool_problems
from roll.pipelines.checks.keys_without_effect import keys_without_effect
from roll.pipelines.checks.sampled import sampled_problems
from roll.pipelines.run.checks import absence_problems, module_problems
from roll.pipelines.sampling.operators import operator_problems


def check_rlvr(config: RLVRConfig) -> list[str]:
    """Check what :func:`roll.config.load` cannot. Imports the modules that it names.

    Returns:
        What has no effect, one sentence each.

    Raises:
        ConfigError: Lists every problem.
    """
    problems = list(absence_problems(config, ("algorithm_modules", "reward_modules", "tracker_modules")))
    problems = problems or [*algorithm_problems(config), *answering_problems(config)]
    if problems:
        raise ConfigError(problems)
    return list(keys_without_effect(config))


def answering_problems(config: AnsweringConfig) -> Iterator[Problem]:
    """Yield what is wrong with the roles and graders of a run over prompts, whatever it learns from its responses."""
    yield from operator_problems(config)
    yield from sampled_problems(config)


def check_evaluation(config: EvaluationConfig) -> list[str]:
    """Check an evaluation without training; return what has no effect. Imports ``reward_modules``.

    Raises:
        ConfigError: Lists every problem.
    """
    problems = list(module_problems(config, ("reward_modules",)))
    problems = problems or [*sampling_problems(config), *template_problems(config), *grading_problems(config)]
    problems = problems or list(tool_problems(config))
    if config.recorded is None and config.actor_infer.strategy_args.starts_with_random_weights:
        path = "actor_infer.strategy_args.strategy_config.load_format"
        message = "the engine starts with random weights, and nothing is trained here that would give it others."
        problems.append(Problem(path, message, "leave it out.", "dummy"))
    if config.recorded is not None and not config.recorded.is_file():
        here = f"(looked for in {Path.cwd()})"
        problems.append(
            Absent("recorded", f"there is no such file {here}.", "name a file with responses.", str(config.recorded))
        )
    if problems:
        raise ConfigError(problems)
    return []
