"""Checks of a distillation that need environments, before any model loads."""

from __future__ import annotations

from roll.config import ConfigError, DistillConfig, require_runnable
from roll.pipelines.checks.agentic import playing_problems
from roll.pipelines.run.checks import module_problems


def check_distill(config: DistillConfig) -> list[str]:
    """Check what :func:`roll.config.load` cannot. Imports the modules that it names, and registers its tags.

    Returns:
        What has no effect, one sentence each: nothing so far.

    Raises:
        ConfigError: Lists every problem.
    """
    require_runnable(config)
    problems = list(module_problems(config, ("env_modules", "reward_modules", "tracker_modules")))
    problems = problems or list(playing_problems(config))
    if problems:
        raise ConfigError(problems)
    return []
