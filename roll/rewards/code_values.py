"""Values and texts that programs produce, and when they equal what a test expects."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

TOLERANCE: Final = 1e-6
"""Relative difference up to which two numbers are equal if one of them is written with a point or an exponent."""


def decode(report: bytes) -> Any:
    """Return the value that ``code_harness.encode`` wrote.

    Raises:
        ValueError: The report is something else. It comes from untrusted code.
    """
    try:
        return _decode(json.loads(report))
    except (TypeError, AttributeError, KeyError, ArithmeticError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"not a report: {error}") from None


_KINDS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "float": float.fromhex,
    "tuple": lambda items: tuple(map(_decode, items)),
    "set": lambda items: set(map(_decode, items)),
    "frozenset": lambda items: frozenset(map(_decode, items)),
    "dict": lambda pairs: {_decode(key): _decode(value) for key, value in pairs},
    "bytes": bytes.fromhex,
    "complex": lambda parts: complex(*map(float.fromhex, parts)),
    "Decimal": Decimal,
    "Fraction": lambda parts: Fraction(int(parts[0]), int(parts[1])),
}


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        return _KINDS[kind](content)
    return value


def equals_json(value: Any, expected: Any) -> bool:
    """Whether a value is what a data set says in JSON: tuples count as lists, keys as text, floats up to rounding."""
    if isinstance(value, tuple | set | frozenset):
        value = sorted(value) if isinstance(value, set | frozenset) else list(value)
    if isinstance(value, list) and isinstance(expected, list | tuple):
        return len(value) == len(expected) and all(map(equals_json, value, expected))
    if isinstance(value, dict) and isinstance(expected, Mapping):
        texts = {str(key): item for key, item in value.items()}
        wanted = {str(key): item for key, item in expected.items()}
        return texts.keys() == wanted.keys() and all(equals_json(texts[key], wanted[key]) for key in texts)
    if isinstance(value, float) or isinstance(expected, float):
        numbers = isinstance(value, int | float) and isinstance(expected, int | float)
        return numbers and _close(value, expected)
    return type(value) is type(expected) and bool(value == expected)


def equals_output(output: str, expected: str) -> bool:
    """Whether a program printed what it should.

    Blank space at the ends of lines and blank lines at the end do not matter. If the lines differ, they are compared
    word by word, numbers up to rounding if one of the two is no whole number.
    """
    lines, wanted = _lines(output), _lines(expected)
    if lines == wanted:
        return True
    return len(lines) == len(wanted) and all(map(_equal_lines, lines, wanted))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().replace("\r\n", "\n").split("\n")]


def _equal_lines(line: str, expected: str) -> bool:
    words, wanted = line.split(), expected.split()
    return len(words) == len(wanted) and all(map(_equal_words, words, wanted))


def _equal_words(word: str, expected: str) -> bool:
    if word == expected:
        return True
    if not any(mark in text for text in (word, expected) for mark in ".eE"):
        return False
    try:
        return _close(float(word), float(expected))
    except (ValueError, OverflowError):
        return False


def _close(value: float, expected: float) -> bool:
    try:
        return value == expected or math.isclose(value, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    except OverflowError:
        return False
