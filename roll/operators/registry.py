"""Names of operators, and what those on tasks work on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from roll.common.registry import Registry

On = Literal["tasks", "experience"]


class OperatorAbsentError(ValueError):
    """An operator needs a package that is not installed here; the message says which."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A row of data on its way through a pipeline.

    Attributes:
        number: Its place among all rows that were read, from 0; it keeps that.
        key: Its name for good, ``<file name>:<row number>``.
        columns: Its columns.
    """

    number: int
    key: str
    columns: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Registered:
    """An operator.

    Attributes:
        function: Takes a list and its options, returns a list.
        on: What is in the list: rows of tasks, or groups of trajectories.
        check: Takes the options, before anything is loaded, and raises ``ValueError`` where they cannot be.
    """

    function: Callable[..., Any]
    on: On
    check: Callable[..., None] | None = None


Function = TypeVar("Function", bound=Callable[..., Any])

OPERATORS: Final[Registry[Registered]] = Registry(
    "operator",
    built_in={
        "filter": "roll.operators.tasks:FILTER",
        "length": "roll.operators.tasks:LENGTH",
        "deduplicate": "roll.operators.tasks:DEDUPLICATE",
        "rewrite": "roll.operators.tasks:REWRITE",
        "curriculum": "roll.operators.tasks:CURRICULUM",
        "datasets": "roll.operators.hugging_face:DATASETS",
        "data_juicer": "roll.operators.data_juicer:DATA_JUICER",
        "difficulty": "roll.operators.difficulty:DIFFICULTY",
        "score": "roll.operators.experience:SCORE",
        "spread": "roll.operators.experience:SPREAD",
        "success": "roll.operators.experience:SUCCESS",
        "tokens": "roll.operators.experience:TOKENS",
        "deduplicate_groups": "roll.operators.experience:DEDUPLICATE_GROUPS",
        "reward_shaping": "roll.operators.experience:REWARD_SHAPING",
        "data_juicer_groups": "roll.operators.data_juicer:DATA_JUICER_GROUPS",
        "human_review": "roll.operators.experience:HUMAN_REVIEW",
    },
    advice="To add your own, decorate it with @register_operator({name!r}) and name its module in algorithm_modules.",
)


def register_operator(name: str, *, on: On) -> Callable[[Function], Function]:
    """Register a function that takes a list and returns one: fewer, changed, or in another order.

    Its other parameters are its options. It must depend on nothing else, so that a run repeats::

        @register_operator("short_answers", on="experience")
        def short_answers(groups, *, most=100):
            return [group for group in groups if max(t.completion_tokens for t in group.trajectories) <= most]

    Args:
        name: The name for ``operators.tasks`` or ``operators.experience``.
        on: What it is given: :class:`TaskRow`, or :class:`~roll.trajectories.model.TrajectoryGroup`.

    Raises:
        DuplicateNameError: Another one has this name.
    """

    def decorate(function: Function) -> Function:
        OPERATORS.add(name, Registered(function, on), definition=function)
        return function

    return decorate
