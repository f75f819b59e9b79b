r"""Whether two answers are equal, value by value, by math-verify. Runs in a process that can be killed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from roll.rewards.exact_numbers import equal_numbers, exact_number
from roll.rewards.math_reading import TIME, Item, Reading, is_broken, read

_SUBJECT: Final = re.compile(
    r"(?=.*[A-Za-z])(?:\\?[A-Za-z]+(?:\{[A-Za-z ]+\})*|_(?:\w|\{\w+\})|\^\{?-1\}?(?=\()|\([^()]*\)|[|:,' ])+"
    r"|\\frac\{[A-Za-z ]+\}\{[A-Za-z ]+\}"
)
"""What a value may be assigned to: ``x``, ``x_1``, ``f(x)``, ``(p,q)``, ``|AB|``."""
_SPAN: Final = re.compile(
    r"\$\$(?P<a>.+?)\$\$|\\\[(?P<b>.+?)\\\]|\\\((?P<c>.+?)\\\)|(?<!\\)\$(?P<d>[^$]+?)(?<!\\)\$", re.DOTALL
)
_BETWEEN_SPANS: Final = re.compile(r"\s*(?:,?\s*(?:and|or)|,)\s*")
_PERCENT: Final = re.compile(r"\s*(?:\\?%|percent(?:age)?\b|pct\b)")
_APPROX: Final = re.compile(r"\\approx(?![A-Za-z])")
_NUMBER_ENDS: Final = re.compile(r"(?:\^\{?(?:\\circ|∘)\}?|°|[.*])+$")
_MIXED: Final = re.compile(r"\d+\+\\frac\{\d+\}\{\d+\}")
_SCIENTIFIC: Final = re.compile(r"(?:(?P<number>.+)(?:\\cdot|\\times|[*×·]))?\(?10\^(?:\d|\{-?\d+\}|\(-?\d+\))\)?")
_CLOSE: Final = 0.02
"""Relative difference of what stands on the two sides of an approximation sign."""


@dataclass(frozen=True, slots=True)
class Value:
    """One value: an item of a reading, or an element of a set that an item stands for."""

    item: Item
    expression: Any = None


def compare(gold: str, answer: str, digits: int, last: bool = False) -> dict[str, Any]:
    """Return ``{"equal": bool}``, or ``{"bad_gold": reason}`` for a ground truth that cannot be read.

    Args:
        gold: The right answer.
        answer: What is compared with it.
        digits: Decimals to which decimal numbers are compared.
        last: Whether ``answer`` is a text whose last expression counts, as math-verify finds it.
    """
    if is_broken(gold):
        return {"bad_gold": "its braces do not balance"}
    try:
        return {"equal": _equal_texts(gold, _last_expression(answer) if last else answer, digits)}
    except Exception:  # sympy raises anything; an answer with which no comparison is possible is not the right one
        return {"equal": False}


def _equal_texts(gold: str, answer: str | Value, digits: int) -> bool:
    right = read(gold)
    if isinstance(answer, Value):
        return _equal_values(_values(right), _flat(answer), digits, ordered=False)
    given = read(answer, like=right)
    if right.text == given.text:
        return bool(right.text)
    if len(right.items) == 1 < len(given.items) and right.items[0].text.startswith("("):
        right = read(gold, like=given)
    values, others = _values(right), _values(given)
    if _equal_values(values, others, digits, ordered=right.is_ordered or given.is_ordered):
        return True
    return len(values) != len(others) and _equal_solutions(right, given, values, others, digits)


def _equal_values(gold: Sequence[Value], answer: Sequence[Value], digits: int, *, ordered: bool) -> bool:
    """Whether both hold the same values; repetitions do not count, the order only if ``ordered``."""
    if ordered:
        pairs = zip(gold, answer, strict=False)
        return len(gold) == len(answer) and all(_equal(first, second, digits, alone=False) for first, second in pairs)
    if len(gold) != len(answer):
        gold, answer = _distinct(gold, digits), _distinct(answer, digits)
    if len(gold) != len(answer):
        return False
    left = list(answer)
    for value in gold:
        match = next((other for other in left if _equal(value, other, digits, alone=len(gold) == 1)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _distinct(values: Sequence[Value], digits: int) -> list[Value]:
    kept: list[Value] = []
    for value in values:
        if not any(_equal(each, value, digits, alone=False) for each in kept):
            kept.append(value)
    return kept


def _equal(gold: Value, answer: Value, digits: int, *, alone: bool) -> bool:
    if gold.expression is None and answer.expression is None and gold.item.text == answer.item.text:
        return True
    first, second = gold.item.words, answer.item.words
    if not alone and first and second and set(first) != set(second):
        return False  # among several values the words tell which is which
    sides, others = _sides(gold), _sides(answer)
    if not sides or not others:
        return False
    if len(sides) > 1 and len(others) > 1:
        return _equal_relations(sides, others, digits)
    if len(sides) > 1 and not _is_subject(sides[0]):
        return False
    source = answer.item.text if answer.expression is not None else None
    return _equals_chain(sides[-1], others, digits, source)


def _sides(value: Value) -> tuple[Any, ...]:
    return value.item.sides if value.expression is None else (value.expression,)


def _equals_chain(gold: Any, sides: Sequence[Any], digits: int, source: str | None = None) -> bool:
    r"""Whether an answer like ``x = 3\cdot 4 = 12`` says ``gold``: one side does, and no side is another number."""
    found = False
    for side in sides:
        if _same(gold, side, digits):
            found = found or not _is_left_undone(gold, side, side if source is None else source)
        elif len(sides) > 1 and not _is_open(side):
            return False
    return found


def _is_left_undone(gold: Any, answer: Any, source: str) -> bool:
    r"""Whether an answer that equals a plain number is a calculation that does not say it, as ``20 - 3`` is for 17.

    Else whoever repeats the question would be right. What has no exact decimals is not left undone: ``2\pi``.
    """
    number = exact_number(gold) if isinstance(gold, str) else None
    if number is None or number.is_undone or gold == source:
        return False
    if any(_is_written(each) for each in _APPROX.split(source)):
        return False
    meaning = expression(answer) if isinstance(answer, str) else answer
    return meaning is None or meaning.doit().is_rational is not False


def _is_written(source: str) -> bool:
    r"""Whether a number stands there: also ``-(1+\frac{1}{2})``, ``3\cdot 10^{4}`` and ``90^\circ``."""
    text = _NUMBER_ENDS.sub("", source.strip())
    number = exact_number(text)
    if number is not None:
        return not number.is_undone
    bare = text.replace(" ", "").lstrip("+-")
    if bare.startswith("(") and bare.endswith(")"):
        return _is_written(bare[1:-1])
    scientific = _SCIENTIFIC.fullmatch(bare)
    if scientific is not None:
        return scientific["number"] is None or _is_written(scientific["number"])
    return _MIXED.fullmatch(bare) is not None


def _equal_relations(gold: Sequence[str], answer: Sequence[str], digits: int) -> bool:
    if _is_subject(gold[0]) and _is_subject(answer[0]):
        return gold[0].replace(" ", "") == answer[0].replace(" ", "") and _equals_chain(gold[-1], answer[1:], digits)
    first, second = expression("=".join(gold)), expression("=".join(answer))
    return first is not None and second is not None and _verified(first, second, digits)


def _is_subject(side: Any) -> bool:
    return isinstance(side, str) and _SUBJECT.fullmatch(side.replace(" ", "")) is not None


def _is_open(side: Any) -> bool:
    """Whether a side names something instead of being a number."""
    if exact_number(side) is not None:
        return False
    meaning = expression(side)
    return meaning is None or bool(meaning.free_symbols) or _is_subject(side)


def _same(gold: Any, answer: Any, digits: int) -> bool:
    """Whether two expressions, as LaTeX or read already, are equal."""
    if isinstance(gold, str) and isinstance(answer, str):
        if gold.replace(" ", "") == answer.replace(" ", ""):
            return True
        answer = _exact_side(gold, answer, digits)
        if answer is None:
            return False
        first, second = exact_number(gold), exact_number(answer)
        if first is not None and second is not None:
            return equal_numbers(first, second, digits)
        if gold.endswith("%") != answer.endswith("%"):
            return _same_percent(gold, answer, digits)
        gold, answer = gold.rstrip("% "), answer.rstrip("% ")
    elif isinstance(gold, str) and gold.endswith("%"):
        plain = gold.rstrip("% ")
        return any(_same(each, answer, digits) for each in (plain, rf"\frac{{{plain}}}{{100}}"))
    first = expression(gold) if isinstance(gold, str) else gold
    second = expression(answer) if isinstance(answer, str) else answer
    return first is not None and second is not None and _verified(first, second, digits)


def _same_percent(gold: str, answer: str, digits: int) -> bool:
    plain, other = gold.rstrip("% "), answer.rstrip("% ")
    hundredth = (rf"\frac{{{plain}}}{{100}}", other) if gold.endswith("%") else (plain, rf"\frac{{{other}}}{{100}}")
    return _same(plain, other, digits) or _same(*hundredth, digits)


def _exact_side(gold: str, answer: str, digits: int) -> str | None:
    r"""Return what an answer with ``\approx`` says: the first side, or the one in the form of ``gold``.

    ``None`` if its sides are far apart.
    """
    sides = [side.strip() for side in _APPROX.split(answer)]
    if len(sides) > 1 and _is_subject(sides[0]):
        sides = sides[1:]
        answer = sides[0]
    if len(sides) == 1 or "approx" in gold:
        return answer
    numbers = [expression(side) for side in sides]
    if any(number is None or not number.is_number for number in numbers):
        return None
    sizes = [complex(number) for number in numbers]
    if any(abs(size - sizes[0]) > _CLOSE * max(abs(sizes[0]), abs(size)) for size in sizes):
        return None
    return next((side for side in sides if _same(gold, side, digits)), sides[0])


def _verified(gold: Any, answer: Any, digits: int) -> bool:
    from math_verify import verify
    from sympy import Symbol

    if isinstance(gold, Symbol) and isinstance(answer, Symbol):
        return bool(gold.name == answer.name)  # math-verify takes \\sigma for \\Sigma
    try:
        return bool(
            verify(
                gold, answer, float_rounding=digits, timeout_seconds=None, raise_on_error=True,
                allow_set_relation_comp=True,
            )
        )  # fmt: skip
    except Exception:  # sympy raises anything; two values that cannot be compared are not equal
        return False


def _values(reading: Reading) -> list[Value]:
    return [value for item in reading.items for value in _flat(Value(item))]


def _flat(value: Value) -> list[Value]:
    r"""Return the elements of a finite set (``\pm 3``), else the value itself."""
    from sympy import FiniteSet

    sides = _sides(value)
    if not sides:
        return [value]
    meaning = expression(sides[-1]) if isinstance(sides[-1], str) else sides[-1]
    if not isinstance(meaning, FiniteSet) or (len(sides) > 1 and not _is_subject(sides[0])):
        return [value]
    return [Value(value.item, element.doit()) for element in meaning.args] or [value]


def _equal_solutions(
    right: Reading, given: Reading, values: Sequence[Value], others: Sequence[Value], digits: int
) -> bool:
    """Whether ``x<3 or x>5`` is the set on the other side."""
    several, one = (given, values) if len(values) == 1 else (right, others)
    if len(one) != 1 or not one[0].item.sides or len(several.conjunctions) > 1:
        return False
    sets = [_solutions(item.sides) for item in several.items]
    single = _solutions(one[0].item.sides)
    if single is None or any(each is None for each in sets):
        return False
    from sympy import Intersection, Union

    joined = Intersection(*sets) if several.conjunctions == {"and"} else Union(*sets)
    return _verified(single, joined, digits)


def _solutions(sides: Sequence[str]) -> Any:
    """Return the set that an inequality, an interval or a union of some stands for; ``None`` for anything else."""
    from sympy import FiniteSet, Set
    from sympy.core.relational import Relational

    meaning: Any = expression(sides[-1]) if sides else None
    if isinstance(meaning, Set) and not isinstance(meaning, FiniteSet):
        return meaning
    try:
        return meaning.as_set() if isinstance(meaning, Relational) or hasattr(meaning, "_unsorted_args") else None
    except (NotImplementedError, ValueError, TypeError, AttributeError):
        return None


@lru_cache(maxsize=2048)
def expression(latex: str) -> Any:
    """Return the one thing that ``latex`` means as a sympy object; ``None`` if it has no meaning, or no value."""
    from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig
    from math_verify.grader import should_treat_as_complex
    from sympy import nan, zoo

    normal = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")
    if TIME.fullmatch(latex):
        return None
    try:
        source = normalize_latex(latex, normal).strip()
        meaning = latex2sympy(
            source,
            is_real=not should_treat_as_complex(source),
            convert_degrees=False,
            normalization_config=None,
            conversion_config=ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False),
        )
        return None if meaning is None or meaning.has(nan, zoo) else meaning
    except Exception:  # its parser raises plain ones: the text is no expression
        return None


def _last_expression(text: str) -> str | Value:
    """Return the last formula of a text, or the last expression as math-verify finds it; ``""`` if there is none.

    Formulas that only a comma, "and" or "or" keeps apart are one answer.
    """
    spans = list(_SPAN.finditer(text))
    if spans and not re.search(r"\d", text[spans[-1].end() :]):
        return _last_formulas(text, spans)
    from math_verify import parse

    found = parse(text, parsing_timeout=None, raise_on_error=True)
    meaning = next((each for each in found if not isinstance(each, str)), None)
    source = next((each for each in found if isinstance(each, str)), "")
    return "" if meaning is None else Value(Item(source, (source,)), meaning)


def _last_formulas(text: str, spans: Sequence[re.Match[str]]) -> str:
    percent = _PERCENT.match(text, spans[-1].end())
    parts = [f"{_content(spans[-1])}{'%' if percent else ''}"]
    for previous, following in zip(reversed(spans[:-1]), reversed(spans), strict=False):
        if not _BETWEEN_SPANS.fullmatch(text[previous.end() : following.start()]):
            break
        parts.append(_content(previous))
    return ", ".join(reversed(parts))


def _content(span: re.Match[str]) -> str:
    return str(next(each for each in span.groups() if each is not None))
