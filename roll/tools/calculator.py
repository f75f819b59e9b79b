"""The tool ``calculator``: arithmetic on an expression, without running any code."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final

from roll.tools.errors import WrongCallError
from roll.tools.registry import register_tool

Number = Fraction | float

_MOST_CHARACTERS: Final = 1000
_MOST_DIGITS: Final = 300
_DIGITS_SHOWN: Final = 12

_BINARY: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: Final[Mapping[type[ast.unaryop], Callable[[Any], Any]]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "abs": abs,
    "min": min,
    "max": max,
    "round": lambda value, digits=0: round(value, int(digits)),
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "log10": math.log10,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
}
_CONSTANTS: Final[Mapping[str, float]] = {"pi": math.pi, "e": math.e}


@register_tool("calculator")
def calculator(expression: str) -> str:
    """Compute an arithmetic expression.

    Args:
        expression: Numbers with + - * / // % ** and parentheses; abs, min, max, round, sqrt, exp, log, sin, cos, tan,
            pi and e are known. An example: (3 + 4) * 2 ** 10

    Raises:
        WrongCallError: It is no arithmetic, has no finite value, or its value is too large.
    """
    if len(expression) > _MOST_CHARACTERS:
        raise WrongCallError(f"the expression has {len(expression)} characters; at most {_MOST_CHARACTERS} are read")
    try:
        return _shown(_value(ast.parse(expression.strip().replace("^", "**"), mode="eval").body))
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise WrongCallError(f"{expression!r} is no arithmetic expression") from error
    except ZeroDivisionError as error:
        raise WrongCallError("division by zero") from error
    except (OverflowError, ValueError, TypeError) as error:
        raise WrongCallError(f"it cannot be computed: {error}") from error


def _value(node: ast.expr) -> Number:
    """Return the value of an expression; whole numbers and fractions stay exact."""
    match node:
        case ast.Constant(value=bool() | complex() | str() | bytes() | None):
            raise WrongCallError(f"{node.value!r} is no number")
        case ast.Constant(value=int() | float()):
            return Fraction(str(node.value))
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _bounded(_UNARY[type(op)](_value(operand)))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _bounded(_power(_value(left), _value(right)))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _bounded(_BINARY[type(op)](_value(left), _value(right)))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            result = _FUNCTIONS[name](*[_value(each) for each in arguments])
            return _bounded(Fraction(result) if isinstance(result, int) else result)
    raise WrongCallError(f"{ast.unparse(node)!r} is not known; known are + - * / // % ** and {', '.join(_FUNCTIONS)}")


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        size = max(abs(base.numerator), base.denominator).bit_length()
        if size * abs(exponent.numerator) > 4 * _MOST_DIGITS:
            raise WrongCallError(f"the result has more than {_MOST_DIGITS} digits")
        return base**exponent.numerator
    result = float(base) ** float(exponent)
    if isinstance(result, complex):
        raise WrongCallError("a root of a negative number is no real number")
    return result


def _bounded(value: Number) -> Number:
    if isinstance(value, Fraction) and max(value.numerator.bit_length(), value.denominator.bit_length()) > 8192:
        raise WrongCallError(f"a number on the way has more than {_MOST_DIGITS} digits")
    return value


def _shown(value: Number) -> str:
    if isinstance(value, Fraction):
        if value.denominator == 1:
            return str(value.numerator)
        value = float(value)
    if not math.isfinite(value):
        raise WrongCallError("the result is no finite number")
    return f"{value:.{_DIGITS_SHOWN}g}"
