"""How a wrong configuration is reported: every problem at once, each with its place, its value and the fix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from roll.common.spelling import nearest


class _Unset:
    """Type of :data:`UNSET`."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = _Unset()
"""The value of a key that is not there (``None`` is a value that a user can write)."""


class ConfigWarning(UserWarning):
    """Something in the configuration has no effect, or probably not the one that was meant."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a configuration.

    Attributes:
        path: Key path as a user writes it on the command line (``train_env_manager.group_size``).
        message: What is wrong, in one sentence.
        fix: What to write instead.
        value: The value found, or :data:`UNSET`.
        source: Where the value was written (``sokoban.yaml:12``, or a command-line override), if known.
    """

    path: str
    message: str
    fix: str
    value: Any = UNSET
    source: str | None = None

    def __str__(self) -> str:
        """Render as an indented paragraph."""
        head = self.path if self.value is UNSET else f"{self.path} = {_shorten(self.value)}"
        place = f"   [{self.source}]" if self.source else ""
        return f"{head}{place}\n    {self.message}\n    Fix: {self.fix}"


class Absent(Problem):
    """Something that a configuration needs is not on this machine: a package, a model, a file.

    The configuration may be right, on another machine.
    """

    __slots__ = ()


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what it came from, the newest first."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


class ConfigError(ValueError):
    """The configuration cannot be used; ``str()`` of it lists every problem.

    Attributes:
        problems: The problems in the order in which they are shown.
    """

    def __init__(self, problems: Sequence[Problem], *, source: str | None = None) -> None:
        self.problems = list(problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        title = f"The configuration{f' {source}' if source else ''} has {count}:"
        super().__init__("\n\n".join([title, *(f"  {str(problem)}" for problem in self.problems)]))


class RunError(RuntimeError):
    """A run cannot go on; the message says why, what is saved and what to do. No traceback is needed to act on it."""


class FixableError(ValueError):
    """A value that a validator refuses, with the fix kept apart from the message.

    Attributes:
        message: What is wrong, in one sentence.
        fix: What to write instead.
    """

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(f"{message} {fix}")
        self.message = message
        self.fix = fix


def choose_from(name: str, candidates: Iterable[str]) -> str:
    """Return a fix that offers the nearest candidate first, then all of them."""
    names = list(candidates)
    close = nearest(name, names)
    listed = "one of " + ", ".join(names)
    return f"did you mean {close!r}? It must be {listed}." if close else f"use {listed}."


def _shorten(value: Any, limit: int = 120) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
