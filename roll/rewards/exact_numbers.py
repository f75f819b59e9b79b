r"""Plain numbers, compared in microseconds: ``42``, ``-1,000``, ``0.5``, ``1e5``, ``1/2``, ``\frac{1}{2}``, ``50%``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

DIGITS: Final = 6
"""Decimals to which a decimal number is compared, as math-verify does."""

_MOST_CHARACTERS: Final = 200
_NUMBER = r"(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"
_PLAIN = re.compile(rf"(?P<sign>[+-]?)\s*(?P<number>(?:{_NUMBER})(?:[eE][+-]?\d{{1,3}})?)(?:\s*/\s*(?P<below>\d+))?")
_MIXED = re.compile(r"(?P<sign>[+-]?)\s*(?P<whole>\d+)\s+(?P<number>\d+)\s*/\s*(?P<below>\d+)")
_FRACTION = re.compile(r"(?P<sign>[+-]?)\s*\\[dt]?frac\s*\{\s*(?P<number>[+-]?\d+)\s*\}\s*\{\s*(?P<below>\d+)\s*\}")
_ANY = re.compile(rf"(?<![\w.])[-+−]?\s?[$€£]?(?:{_NUMBER})(?:\s*/\s*\d+(?![\d.]))?(?:\s*\\?%)?")


@dataclass(frozen=True, slots=True)
class ExactNumber:
    """A number as it was written.

    Attributes:
        value: The number itself; ``50%`` is 50 here.
        is_decimal: Whether it has a decimal point, and so may be a rounded one.
        is_percent: Whether a percent sign follows.
        is_undone: Whether it is a division that was not carried out: ``20/4``, ``0.5/2``, but not ``1/2``.
    """

    value: Fraction
    is_decimal: bool = False
    is_percent: bool = False
    is_undone: bool = False


def exact_number(text: str) -> ExactNumber | None:
    """Return ``text`` as a number; ``None`` if it is anything more than one plain number."""
    if len(text) > _MOST_CHARACTERS:
        return None
    text = text.strip().replace("−", "-")
    if len(text) > 2 and text[0] == text[-1] == "$":
        text = text[1:-1].strip()
    elif text.startswith((r"\(", r"\[")) and text.endswith((r"\)", r"\]")):
        text = text[2:-2].strip()
    text = re.sub(r"^([+-]?)\s*(?:\\\$|[$€£])\s*", r"\1", text)
    percent = re.search(r"\s*\\?%$", text)
    if percent is not None:
        text = text[: percent.start()]
    match = _PLAIN.fullmatch(text) or _FRACTION.fullmatch(text) or _MIXED.fullmatch(text)
    if match is None:
        return None
    written = match["number"].replace(",", "")
    below = int(match["below"] or 1)
    if below == 0 or ("whole" in match.groupdict() and not 0 < int(match["number"]) < below):
        return None
    value = int(match.groupdict().get("whole") or 0) + Fraction(written) / below
    is_decimal = "." in written
    is_undone = match["below"] is not None and (is_decimal or value.denominator == 1)
    return ExactNumber(-value if match["sign"] == "-" else value, is_decimal, percent is not None, is_undone)


def last_number(text: str) -> ExactNumber | None:
    """Return the last number that stands in ``text``."""
    found = [match.group() for match in _ANY.finditer(text)]
    return exact_number(found[-1].replace("- ", "-")) if found else None


def equal_numbers(gold: ExactNumber, answer: ExactNumber, digits: int = DIGITS) -> bool:
    """Return whether an answer is the right number.

    Whole numbers and fractions must be equal exactly; if one is a decimal, both are rounded to ``digits`` decimals,
    as math-verify does. A percent sign on one side alone may mean a hundredth, or just repeat the unit: both are
    accepted. A division that was not carried out is no answer, unless the right one is written so.
    """
    if answer.is_undone and not gold.is_undone:
        return False
    if gold.is_percent == answer.is_percent:
        return _equal(gold.value, answer.value, gold.is_decimal or answer.is_decimal, digits)
    decimal = gold.is_decimal or answer.is_decimal
    left = gold.value / 100 if gold.is_percent else gold.value
    right = answer.value / 100 if answer.is_percent else answer.value
    return _equal(left, right, decimal, digits) or gold.value == answer.value


def _equal(first: Fraction, second: Fraction, decimal: bool, digits: int) -> bool:
    return first == second or (decimal and round(first, digits) == round(second, digits))
