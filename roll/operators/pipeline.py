"""A pipeline of operators: each is given what the one before it left, and it is counted what it dropped and changed."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from roll.operators.registry import OPERATORS, On, OperatorAbsentError

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator with its options."""

    name: str
    function: Callable[..., Any]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """What an operator did.

    Attributes:
        name: Its name.
        given: How many it was given.
        dropped: How many of them it dropped.
        changed: How many of the others it changed.
    """

    name: str
    given: int
    dropped: int
    changed: int

    def __str__(self) -> str:
        """Return one line, for people."""
        changed = f", changed {self.changed:,}" if self.changed else ""
        return f"operator {self.name}: dropped {self.dropped:,} of {self.given:,}{changed}"


def operator_of(name: str, options: Mapping[str, Any], on: On) -> Operator:
    """Return an operator with its options.

    Raises:
        UnknownNameError: There is none of this name.
        OperatorAbsentError: It needs a package that is not installed.
        ValueError: It works on something else, does not have one of the options, or needs one that is missing.
    """
    found = OPERATORS.get(name)
    if found.on != on:
        raise ValueError(f"the operator {name!r} works on {found.on}, not on {on}")
    try:
        inspect.signature(found.function).bind([], **options)
    except TypeError as error:
        known = ", ".join(list(inspect.signature(found.function).parameters)[1:]) or "none"
        raise ValueError(
            f"the operator {name!r} cannot be given {dict(options)}: {error}. Its options: {known}"
        ) from error
    if found.check is not None:
        try:
            found.check(**options)
        except OperatorAbsentError as error:
            raise OperatorAbsentError(f"the operator {name!r} cannot be used: {error}") from error
        except ValueError as error:
            raise ValueError(f"the operator {name!r} cannot be given {dict(options)}: {error}") from error
    return Operator(name, found.function, options)


def run_operators(
    operators: Sequence[Operator], items: Sequence[Item], identity: Callable[[Item], object]
) -> tuple[list[Item], list[Change]]:
    """Apply operators one after the other.

    What goes in is not changed: an operator is given copies.

    Args:
        operators: The operators.
        items: Rows or groups.
        identity: What stays the same of one that is changed.

    Returns:
        What is left, in the order that the last one gave it, and what each did.

    Raises:
        ValueError: An operator raised, or returned what it was not given.
    """
    left, changes = list(items), list[Change]()
    for operator in operators:
        before = {identity(item): item for item in left}
        try:
            after = list(operator.function(copy.deepcopy(left), **operator.options))
        except Exception as error:
            raise ValueError(f"the operator {operator.name!r} raised {type(error).__name__}: {error}") from error
        names = [identity(item) for item in after]
        if len(set(names)) < len(names) or not before.keys() >= set(names):
            raise ValueError(f"the operator {operator.name!r} returned something twice, or that it was not given")
        changed = sum(item != before[name] for name, item in zip(names, after, strict=True))
        changes.append(Change(operator.name, len(left), len(left) - len(after), changed))
        left = after
    return left, changes
