"""Checks of verifiers and group rewards, before any model loads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from roll.common.registry import UnknownNameError
from roll.config import ConfigError, Problem
from roll.config.grading_keys import GradedKeys
from roll.config.prompt_keys import PromptKeys
from roll.rewards.build import build_rubrics
from roll.rewards.groups import GroupRubric
from roll.tools import ToolConfigError, make_tools


def grading_problems(config: GradedKeys) -> Iterator[Problem]:
    """Make every verifier once, with stand-ins for the models that some grade with, and every group reward."""
    if config.rewards or config.needs_rewards:
        stand_ins: dict[str, Any] = {name: _stand_in for name in ("judge", "score", "render", "score_steps")}
        stand_ins["judges"] = dict.fromkeys(config.judges, _stand_in)
        try:
            build_rubrics(config, stand_ins)
        except ConfigError as error:
            yield from error.problems
    for name, configured in config.group_reward.items():
        try:
            GroupRubric({name: configured})
        except UnknownNameError as error:
            yield Problem(f"group_reward.{name}", str(error), "name one of the known group rewards.")
        except ValueError as error:
            yield Problem(f"group_reward.{name}.options", str(error), "correct the option.")


def tool_problems(config: PromptKeys) -> Iterator[Problem]:
    """Make the tools for prompts once."""
    try:
        for tool in make_tools(config.tools):
            tool.close()
    except ToolConfigError as error:
        yield Problem("tools", str(error), "correct what the tool is made with, or leave it out.", config.tools)


def _stand_in(*_: object) -> None:
    """Take the place of a model; never called."""
