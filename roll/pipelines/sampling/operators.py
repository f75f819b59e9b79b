"""The operators that a configuration names."""

from __future__ import annotations

from collections.abc import Iterator

from roll.common.registry import UnknownNameError
from roll.config import Problem
from roll.config.errors import Absent
from roll.config.grading_keys import GradedKeys
from roll.operators import Operator, operator_of
from roll.operators.registry import On, OperatorAbsentError
from roll.pipelines.run.checks import sentence


def operators_on(config: GradedKeys, on: On) -> list[Operator]:
    """Return the operators on tasks or on experience; the modules that register some must have been imported."""
    chosen = config.operators.tasks if on == "tasks" else config.operators.experience
    return [operator_of(each.name, each.args, on) for each in chosen]


def operator_problems(config: GradedKeys) -> Iterator[Problem]:
    """Yield operators that nobody knows, options that they do not have, and a review where nothing can wait."""
    pipelines: dict[On, str] = {"tasks": "operators.tasks", "experience": "operators.experience"}
    for on, path in pipelines.items():
        for index, each in enumerate(getattr(config.operators, on)):
            try:
                operator_of(each.name, each.args, on)
            except UnknownNameError as error:
                yield Problem(f"{path}.{index}.name", sentence(error), "use a known name.", each.name)
            except OperatorAbsentError as error:
                yield Absent(f"{path}.{index}.name", sentence(error), "install it, or leave it out.", each.name)
            except ValueError as error:
                yield Problem(f"{path}.{index}.args", sentence(error), "correct it.", each.args)
            if each.name == "human_review" and on == "experience":
                yield from _review_problems(config, f"{path}.{index}.name")


def _review_problems(config: GradedKeys, path: str) -> Iterator[Problem]:
    """Yield what is in the way of groups that wait for people."""
    if config.learns_at_once:
        message = "groups wait for people in a store between two programs, and this run has none."
        yield Problem(path, message, "use mode: explore and mode: train.", "human_review")
