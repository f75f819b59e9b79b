"""Checks of a distillation, before any model loads."""

from __future__ import annotations

from roll.config import ConfigError, DistillConfig, PromptDistillConfig
from roll.pipelines.checks.agentic import playing_problems
from roll.pipelines.checks.rlvr import answering_problems
from roll.pipelines.run.checks import absence_problems


def check_distill(config: DistillConfig) -> list[str]:
    """Check what :func:`roll.config.load` cannot. Imports the modules that it names, and registers its tags.

    Returns:
        What has no effect, one sentence each: nothing so far.

    Raises:
        ConfigError: Lists every problem.
    """
    problems = list(absence_problems(config, ("env_modules", "reward_modules", "tracker_modules")))
    problems = problems or list(playing_problems(config))
    if problems:
        raise ConfigError(problems)
    return []


def check_distill_prompts(config: PromptDistillConfig) -> list[str]:
    """Check what :func:`roll.config.load` cannot. Imports the modules that it names.

    Returns:
        What has no effect, one sentence each: nothing so far.

    Raises:
        ConfigError: Lists every problem.
    """
    problems = list(absence_problems(config, ("reward_modules", "tracker_modules")))
    problems = problems or list(answering_problems(config))
    if problems:
        raise ConfigError(problems)
    return []
