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
    """

    value: Fraction
    is_decimal: bool = False
    is_percent: bool = False


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
    if below == 0 or ("whole" in match.groupdict() and int(match["number"]) >= below):
        return None
    value = int(match.groupdict().get("whole") or 0) + Fraction(written) / below
    return ExactNumber(-value if match["sign"] == "-" else value, "." in written, percent is not None)


def last_number(text: str) -> ExactNumber | None:
    """Return the last number that stands in ``text``."""
    found = [match.group() for match in _ANY.finditer(text)]
    return exact_number(found[-1].replace("- ", "-")) if found else None


def equal_numbers(first: ExactNumber, second: ExactNumber, digits: int = DIGITS) -> bool:
    """Return whether two numbers are equal, as math-verify sees it.

    Whole numbers and fractions must be equal exactly; if one is a decimal, both are rounded to ``digits`` decimals.
    A percent sign on one side alone may mean a hundredth, or just repeat the unit: both are accepted.
    """
    if first.is_percent == second.is_percent:
        return _equal(first.value, second.value, first.is_decimal or second.is_decimal, digits)
    decimal = first.is_decimal or second.is_decimal
    left = first.value / 100 if first.is_percent else first.value
    right = second.value / 100 if second.is_percent else second.value
    return _equal(left, right, decimal, digits) or first.value == second.value


def _equal(first: Fraction, second: Fraction, decimal: bool, digits: int) -> bool:
    return first == second or (decimal and round(first, digits) == round(second, digits))
