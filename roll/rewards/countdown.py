"""The countdown game: an expression of given numbers that comes to a target."""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from roll.rewards.answers import after_thinking, marked_answer
from roll.rewards.base import RewardRequest, Verdict
from roll.rewards.registry import register_verifier, row_name

_MOST_CHARACTERS: Final = 500
_NUMBERS: Final = ("nums", "numbers")


@register_verifier("countdown", is_quick=True)
def countdown(request: RewardRequest, *, partial: float = 0.0) -> Verdict:
    """1 if the marked answer uses each given number once and comes to the target, else 0.

    Target and numbers are columns ``target`` and ``nums`` (or ``numbers``) of the row, or a mapping of these in the
    ground truth.

    Args:
        request: The response.
        partial: Score of an expression that is one, and not right.
    """
    asked = _asked(request)
    if asked is None:
        return Verdict(None, error=f"countdown needs target and numbers, which {row_name(request)} lacks")
    target, numbers = asked
    answer = marked_answer(after_thinking(request.response), cut_off=request.finish_reason == "length")
    used: list[int] = []
    value = None if answer is None else _value(answer, used)
    if value is None:
        return Verdict(0.0, {"answered": 0.0})
    is_right = value == target and Counter(used) == Counter(numbers)
    return Verdict(1.0 if is_right else partial, {"answered": 1.0})


def _asked(request: RewardRequest) -> tuple[Fraction, list[int]] | None:
    places: list[Mapping[str, Any]] = [request.row]
    try:
        truth = json.loads(request.ground_truth or "null")
    except ValueError:
        truth = None
    places += [truth] if isinstance(truth, Mapping) else []
    for place in places:
        numbers = next((place[name] for name in _NUMBERS if place.get(name) is not None), None)
        target = place.get("target", truth if isinstance(truth, int) else None)
        if numbers is not None and target is not None:
            try:
                return Fraction(str(target)), [int(number) for number in numbers]
            except (TypeError, ValueError):
                return None
    return None


def _value(text: str, used: list[int]) -> Fraction | None:
    """Return what an expression of whole numbers comes to, and note its numbers; ``None`` where it is none."""
    expression = text.partition("=")[0].strip().replace("×", "*").replace("÷", "/").replace("−", "-")
    if len(expression) > _MOST_CHARACTERS:
        return None
    try:
        return _computed(ast.parse(expression, mode="eval").body, used)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _computed(node: ast.expr, used: list[int]) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        used.append(node.value)
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_computed(node.operand, used)
    if isinstance(node, ast.BinOp):
        left, right = _computed(node.left, used), _computed(node.right, used)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div):
            return left / right
    raise ValueError("no arithmetic of whole numbers")
