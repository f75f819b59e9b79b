"""Checks of runs over rows (supervised fine-tuning, preferences) that need no model."""

from __future__ import annotations

from collections.abc import Iterator

from roll.config import ConfigError, Problem
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
    problems = list(_picture_problems(config))
    problems += [*strategy_problems(config), *worker_problems(config), *template_problems(config)]
    if problems:
        raise ConfigError(problems)
    return notes


def _picture_problems(config: RowSteps) -> Iterator[Problem]:
    """Yield pictures, which rows that are learned from as they are have none of."""
    if config.actor_train.data_args.image_key is not None:
        message, fix = "rows are imitated and compared as text.", "leave it out; rlvr answers prompts with pictures."
        yield Problem("actor_train.data_args.image_key", message, fix, config.actor_train.data_args.image_key)
