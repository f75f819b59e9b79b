"""Names of verifiers, what each reads, and the decorator with which users add their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from roll.common.registry import Registry
from roll.config.errors import choose_from
from roll.rewards.base import RewardRequest, Verdict, Verifier
from roll.rewards.functions import FunctionVerifier

Factory = TypeVar("Factory", bound=Callable[..., Any])

_BUILT_IN: Final[Mapping[str, str]] = {
    "math": "roll.rewards.math_answer",
    "acc": "roll.rewards.math_answer",
    "base_acc": "roll.rewards.math_answer",
    "format": "roll.rewards.formats",
    "strict_format": "roll.rewards.formats",
    "step": "roll.rewards.formats",
    "multiple_choice": "roll.rewards.multiple_choice",
    "ifeval": "roll.rewards.ifeval",
    "reasoning_gym": "roll.rewards.puzzles",
    "countdown": "roll.rewards.countdown",
    "tool_calls": "roll.rewards.tool_calls",
    "overlong": "roll.rewards.overlong",
    "code": "roll.rewards.code",
    "llm_judge": "roll.rewards.llm_judge",
    "remote": "roll.rewards.remote",
    "reward_model": "roll.rewards.reward_model",
    "process_reward_model": "roll.rewards.process_reward_model",
}
"""The module that registers each built-in verifier; it is imported when the name is first used."""


class VerifierOptionError(ValueError):
    """A verifier cannot be made from its options, or lacks something the pipeline must give it."""


@dataclass(frozen=True, slots=True)
class VerifierEntry:
    """One registered verifier.

    Attributes:
        name: The name the configuration uses.
        factory: The class, or the function that grades.
        needs_row: Columns without which it cannot grade; ``ground_truth`` stands for the request's own.
        uses: Keyword arguments that are objects given at build time, not options of the configuration.
        options: Options with their defaults (``inspect.Parameter.empty`` where one must be given).
        is_quick: Whether a function is called in the event loop.
        processes: Most processes that call a function; 0 is one per processor, 2 to 8.
    """

    name: str
    factory: Callable[..., Any]
    needs_row: tuple[str, ...]
    uses: tuple[str, ...]
    options: Mapping[str, Any]
    is_quick: bool = False
    processes: int = 0

    @property
    def is_function(self) -> bool:
        """Whether the function itself grades, instead of making a verifier."""
        return not inspect.isclass(self.factory)

    def check_options(self, given: Iterable[str]) -> None:
        """Check the names of the options given.

        Raises:
            VerifierOptionError: The verifier has no such option, or a required one is missing.
        """
        given = list(given)
        for option in given:
            if option not in self.options:
                if not self.options:
                    raise VerifierOptionError(f"verifier {self.name!r} has no options, but got {option!r}.")
                advice = choose_from(option, self.options)
                raise VerifierOptionError(f"verifier {self.name!r} has no option {option!r}: {advice}")
        missing = [
            name for name, default in self.options.items() if default is inspect.Parameter.empty and name not in given
        ]
        if missing:
            raise VerifierOptionError(f"verifier {self.name!r} needs the option {', '.join(missing)}.")


VERIFIERS: Registry[VerifierEntry] = Registry(
    "verifier",
    built_in=_BUILT_IN,
    advice="To add your own, decorate it with @register_verifier({name!r}) and name its module in reward_modules.",
)


def register_verifier(
    name: str,
    *,
    needs_row: Iterable[str] = (),
    uses: Iterable[str] = (),
    is_quick: bool = False,
    processes: int = 0,
) -> Callable[[Factory], Factory]:
    """Register a verifier under ``name``: a class, or a plain function.

    A class is constructed with its options as keywords, and its instances are verifiers. A function takes the request
    first and its options as keywords, and returns a number, a :class:`~roll.rewards.base.Verdict`, or a mapping with
    ``score``; if it is no coroutine function, it is called in a process that can be killed::

        @register_verifier("short")
        def short(request, *, limit=100):
            return float(len(request.response) <= limit)

    Args:
        name: The name for ``rewards.<domain>.verifiers``.
        needs_row: Columns a row must have; ``ground_truth`` for the right answer. Without them there is no score.
        uses: Keyword arguments that the pipeline gives (``judge``, ``score``, …): callables, not configuration.
        is_quick: Call the function in the event loop: it takes microseconds and never hangs.
        processes: Most processes that call the function; 0 is one per processor, 2 to 8.

    Raises:
        DuplicateNameError: Another verifier has this name.
    """

    def decorate(factory: Factory) -> Factory:
        options = _options(factory, frozenset(uses))
        entry = VerifierEntry(name, factory, tuple(needs_row), tuple(uses), options, is_quick, processes)
        VERIFIERS.add(name, entry, definition=factory)
        return factory

    return decorate


def make_verifier(
    name: str, options: Mapping[str, Any] | None = None, resources: Mapping[str, Any] | None = None
) -> Verifier:
    """Make the verifier called ``name``.

    Args:
        name: A registered name.
        options: Its options, from the configuration.
        resources: Objects for verifiers that use some, by keyword; those that a verifier does not use are ignored.

    Raises:
        UnknownNameError: There is no such verifier.
        VerifierOptionError: An option is unknown, missing or has a wrong value.
        ImportError: It needs a package that is not installed; the message names it.
    """
    entry = VERIFIERS.get(name)
    given = dict(options or {})
    entry.check_options(given)
    given |= {use: value for use, value in (resources or {}).items() if use in entry.uses}
    if entry.is_function:
        verifier: Verifier = FunctionVerifier(entry.factory, given, is_quick=entry.is_quick, processes=entry.processes)
    else:
        try:
            verifier = entry.factory(**given)
        except (TypeError, ValueError) as error:
            raise VerifierOptionError(f"verifier {name!r}: {error}") from error
    return _RowCheck(verifier, name, entry.needs_row) if entry.needs_row else verifier


class _RowCheck:
    """Refuses to grade a row that lacks what the verifier needs."""

    def __init__(self, verifier: Verifier, name: str, columns: tuple[str, ...]) -> None:
        self._verifier = verifier
        self._name = name
        self._columns = columns

    async def __call__(self, request: RewardRequest) -> Verdict:
        for column in self._columns:
            value = request.ground_truth if column == "ground_truth" else request.row.get(column)
            if value is None:
                have = ", ".join(sorted(map(str, request.row))) or "none"
                return Verdict(
                    None,
                    error=f"{self._name} needs the column {column!r}, which {row_name(request)} lacks; it has: {have}",
                )
        return await self._verifier(request)

    async def close(self) -> None:
        close = getattr(self._verifier, "close", None)
        if close is not None:
            await close()


def row_name(request: RewardRequest) -> str:
    """Return how to find the request's row: its id or index, its tag, and the end of its prompt."""
    row = request.row
    key = next((f"{name} {row[name]}" for name in ("id", "index", "uid") if row.get(name) is not None), "")
    tag = f"tag {request.tag!r}" if request.tag else ""
    prompt = str(request.messages[-1].get("content", "")) if request.messages else ""
    asked = f"prompt {prompt if len(prompt) <= 60 else '…' + prompt[-60:]!r}" if prompt else ""
    where = ", ".join(part for part in (key, tag, asked) if part)
    return f"the row ({where})" if where else "the row"


def _options(factory: Callable[..., Any], uses: frozenset[str]) -> dict[str, Any]:
    """Return the keyword parameters that are options, with their defaults."""
    parameters = list(inspect.signature(factory).parameters.values())
    if not inspect.isclass(factory):
        parameters = parameters[1:]
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    if any(parameter.kind in variadic for parameter in parameters):
        raise ValueError(f"{factory.__qualname__}: spell the options out; *args and **kwargs would hide wrong ones.")
    return {parameter.name: parameter.default for parameter in parameters if parameter.name not in uses}
