"""Checks of every run that samples, whatever it samples and learns."""

from __future__ import annotations

from collections.abc import Iterator

from roll.config import Problem
from roll.config.prompt_keys import PromptKeys
from roll.pipelines.checks.common import (
    picture_problems,
    sampling_problems,
    strategy_problems,
    template_problems,
    trained_text_problems,
    worker_problems,
)
from roll.pipelines.checks.grading import grading_problems, tool_problems
from roll.pipelines.run.checks import tracker_problems


def sampled_problems(config: PromptKeys, *, trains: bool = True) -> Iterator[Problem]:
    """Yield what is wrong with the roles, templates, graders and tools of a run.

    Args:
        config: The configuration.
        trains: Whether the policy is to be trained, and not only measured.
    """
    yield from strategy_problems(config)
    if trains:
        yield from trained_text_problems(config)
    yield from picture_problems(config)
    yield from sampling_problems(config)
    yield from worker_problems(config)
    yield from tracker_problems(config)
    yield from template_problems(config)
    yield from grading_problems(config)
    yield from tool_problems(config)
