"""Conditions of a script that its own values decide."""

from __future__ import annotations

import fnmatch
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from roll.convert.reading.interpolations import without_kept
from roll.convert.reading.shell.variables import Variables

_NUMBERS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}


def holds(words: Sequence[str], variables: Variables) -> bool | None:
    """Return whether a condition holds, ``None`` where only the machine that runs the script knows.

    Args:
        words: Its words as written: ``[ "$A" = b ]``, ``[[ … ]]`` or ``test …``.
        variables: Values so far.
    """
    if words and words[0] == "!":
        inner = holds(words[1:], variables)
        return None if inner is None else not inner
    if not words or words[0] not in ("[", "[[", "test"):
        return {"true": True, "false": False}.get(words[0]) if words else None
    inside = [word for word in words[1:] if word not in ("]", "]]")]
    # A variable that nobody sets is empty, as it is where the script is started with no environment of its own.
    return _tested([without_kept(variables.text(word)) for word in inside])


def _tested(words: Sequence[str]) -> bool | None:
    if words[:1] == ["!"]:
        inner = _tested(words[1:])
        return None if inner is None else not inner
    if len(words) == 2 and words[0] in ("-z", "-n"):
        return (not words[1]) == (words[0] == "-z")
    if len(words) != 3:
        return None
    left, sign, right = words
    if sign in ("=", "=="):
        return fnmatch.fnmatchcase(left, right)
    if sign == "!=":
        return not fnmatch.fnmatchcase(left, right)
    if sign in _NUMBERS and all(word.lstrip("-").isdigit() for word in (left, right)):
        return _NUMBERS[sign](int(left), int(right))
    return None
