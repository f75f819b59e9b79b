"""Checks of runs over rows (supervised fine-tuning, preferences) that need no model."""

from __future__ import annotations

from roll.config import ConfigError
from roll.config.row_steps import RowSteps
from roll.pipelines.checks.common import strategy_problems, template_problems, worker_problems
from roll.pipelines.run.checks import check_run


def check_rows(config: RowSteps) -> list[str]:
    """Check what :func:`roll.config.load` cannot. Imports the modules that it names.

    Returns:
        What has no effect, one sentence each.

    Raises:
        ConfigError: Lists every problem.
    """
    notes = check_run(config)
    problems = [*strategy_problems(config), *worker_problems(config), *template_problems(config)]
    if problems:
        raise ConfigError(problems)
    return notes
