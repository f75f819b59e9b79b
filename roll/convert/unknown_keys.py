"""Keys that are not known here, or not told an engine, in a file of native keys otherwise: left out and recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from roll.config.base import ConfigModel
from roll.config.dialects import ForeignKey, State, is_typing_mistake
from roll.config.errors import Problem
from roll.config.validation import model_at, valid_keys
from roll.strategies.generation.engine_options import SET_HERE, EngineProblem

_UNKNOWN: Final = "unknown key."


def unknown_keys(problems: Sequence[Problem], kind: type[ConfigModel]) -> list[ForeignKey]:
    """Return a record of every key that ``problems`` call unknown, and that looks like no key that there is.

    Arguments that the engine of a file is not told are among them.

    Args:
        problems: What is wrong with native keys.
        kind: The model of these keys.
    """
    found = []
    for problem in problems:
        if isinstance(problem, EngineProblem):
            state: State = "no_effect" if problem.message == SET_HERE else "impossible"
            why = f"{problem.message.rstrip('.')}: {problem.fix.rstrip('.')}"
            found.append(ForeignKey(problem.path, state, why=why))
        parent, _, name = problem.path.rpartition(".")
        model = model_at(kind, parent.split(".")) if parent else kind
        known = valid_keys(model) if model is not None else []
        if problem.message == _UNKNOWN and not is_typing_mistake(name, known):
            found.append(ForeignKey(problem.path, "impossible", why="no key of ROLL that is known here"))
    return found
