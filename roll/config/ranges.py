"""What a key may be while it is tuned: a range of numbers, or one of several values, as YAML or as a word."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from roll.config.composing import quoted
from roll.config.errors import FixableError

Scalar = bool | int | float | str | None

_WORDS: Final = "write loguniform(1e-5, 1e-3), uniform(0, 1), range(2, 9, 2), int(interval(1, 8)) or choice(8, 16, 32)."
_KEYS: Final = "write {low: 1e-5, high: 1e-3, log: true}, a list of values, or such a word as loguniform(1e-5, 1e-3)."
_CALL: Final = re.compile(r"\s*[A-Za-z_]+\s*\(.*\)\s*", re.DOTALL)
_UNIFORM: Final = re.compile(r"\buniform\s*\(")
_LOGUNIFORM: Final = re.compile(r"\bloguniform\s*\(([^()]*)\)")


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers between two, both included.

    Attributes:
        low: The least.
        high: The greatest.
        log: Whether each order of magnitude is as likely as another.
        step: The distance of two neighbours; ``None`` for any number between, of whole ones 1.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def __str__(self) -> str:
        """Return it as one would write it on the command line."""
        low, high = (format_value(value) for value in (self.low, self.high))
        if self.log:
            return f"loguniform({low}, {high})"
        return f"uniform({low}, {high})" if self.step is None else f"{low} to {high} by {format_value(self.step)}"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several values.

    Attributes:
        values: At least two.
    """

    values: tuple[Scalar, ...]

    def __str__(self) -> str:
        """Return it as one would write it on the command line."""
        return f"choice({', '.join(map(format_value, self.values))})"


def read_range(value: Any) -> Range | Choice:
    """Return what a value of the section ``tune`` says.

    Args:
        value: A mapping with ``low`` and ``high``, and perhaps ``log`` or ``step``; a list of values; or a word of
            Hydra's grammar of sweeps, to which ``loguniform(low, high)`` and ``uniform(low, high)`` are added.

    Raises:
        FixableError: It says nothing that can be tuned.
    """
    if isinstance(value, Range | Choice):
        return value
    if isinstance(value, Mapping):
        return _of_mapping(value)
    if isinstance(value, list | tuple):
        return _choice(value)
    if isinstance(value, str):
        found = range_in(value)
        if found is not None:
            return found
    raise FixableError("no range and no list of values.", _KEYS)


def range_in(text: str) -> Range | Choice | None:
    """Return the range that a word is, ``None`` for a plain value.

    Args:
        text: What stands behind ``key=`` on the command line.

    Raises:
        FixableError: It looks like a range and is none.
    """
    if not _CALL.fullmatch(text) and "," not in text:
        return None
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, RangeSweep
    from hydra.errors import HydraException

    word = _LOGUNIFORM.sub(r"tag(log, interval(\1))", _UNIFORM.sub("interval(", text))
    try:
        override = OverridesParser.create().parse_override(f"key={word}")
    except HydraException as error:
        if not _CALL.fullmatch(text):
            return None
        said = " ".join(str(error).split("\n")[0].split()).rstrip(".")
        raise FixableError(f"{text!r} cannot be read: {said}.", _WORDS) from error
    sweep = override.value() if override.is_sweep_override() else None
    if isinstance(sweep, ChoiceSweep):
        return _choice([_unquoted(item) for item in sweep.list])
    if isinstance(sweep, RangeSweep):
        return _choice(list(sweep.range()))
    if isinstance(sweep, IntervalSweep):
        return _between(sweep.start, sweep.end, log="log" in sweep.tags)
    return None


def format_value(value: Any) -> str:
    """Return a value as it is written behind ``key=`` on the command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return value if re.fullmatch(r"[A-Za-z_][\w./-]*", value) and value not in _SPECIAL else quoted(value)
    return f"{value:.6g}" if isinstance(value, float) and float(f"{value:.6g}") == value else repr(value)


_SPECIAL: Final = ("true", "false", "null", "nan", "inf", "True", "False")


def _of_mapping(value: Mapping[Any, Any]) -> Range | Choice:
    given = dict(value)
    if given.keys() == {"choices"} and isinstance(given["choices"], list | tuple):
        return _choice(given["choices"])
    unknown = given.keys() - {"low", "high", "log", "step"}
    if unknown:
        sections = [key for key in unknown if isinstance(given[key], Mapping | list)]
        fix = "write the whole path with dots, in one line: actor_train.training_args.learning_rate: {…}."
        raise FixableError(f"a range has no {', '.join(map(str, unknown))}.", fix if sections else _KEYS)
    if {"low", "high"} - given.keys():
        raise FixableError("a range needs low and high.", _KEYS)
    log = given.get("log", False)
    if not isinstance(log, bool):
        raise FixableError(f"log is {log!r}.", "write log: true or log: false.")
    return _between(given["low"], given["high"], log=log, step=given.get("step"))


def _between(low: Any, high: Any, *, log: bool, step: Any = None) -> Range:
    for name, number in (("low", low), ("high", high), ("step", 1 if step is None else step)):
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise FixableError(f"{name} is {number!r}, which is no number.", _KEYS)
        if number != number or number in (float("inf"), float("-inf")):
            raise FixableError(f"{name} is not finite.", _KEYS)
    if low >= high:
        raise FixableError(f"there is nothing between {low!r} and {high!r}.", "write the smaller number first.")
    if log and low <= 0:
        raise FixableError(f"a logarithm has no {low!r}.", "let low be above 0, or leave log out.")
    if step is not None and step <= 0:
        raise FixableError(f"step is {step!r}.", "let step be above 0.")
    if log and step is not None:
        raise FixableError("log and step do not go together.", "leave one of them out.")
    return Range(low, high, log, step)


def _choice(values: Any) -> Choice:
    items = list(values)
    odd = [item for item in items if not (item is None or isinstance(item, bool | int | float | str))]
    if odd:
        raise FixableError(
            f"{odd[0]!r} is no single value.", "choose among text, numbers, true, false and null; of lists, tune parts."
        )
    distinct = list(dict.fromkeys((type(item), item) for item in items))
    if len(distinct) < 2:
        raise FixableError("there is nothing to choose from.", "name two values or more.")
    return Choice(tuple(item for _, item in distinct))


def _unquoted(item: Any) -> Any:
    """Return the text of what Hydra keeps in quotes."""
    return item.text if hasattr(item, "text") and hasattr(item, "quote") else item
