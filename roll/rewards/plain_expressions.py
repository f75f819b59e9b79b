"""Whether a text that somebody will evaluate as Python is a plain expression: a number, a formula, a list of such."""

from __future__ import annotations

import ast
from typing import Final

_FUNCTIONS: Final = frozenset(
    "sin cos tan cot sec csc asin acos atan sinh cosh tanh asinh acosh atanh exp log ln sqrt Abs".split()
)
_CONSTANTS: Final = frozenset({"pi", "oo"})
_MOST_CHARACTERS: Final = 2000
_GREATEST_EXPONENT: Final = 100
_MOST_DIGITS: Final = 30
_MOST_POWERS: Final = 2
"""Powers inside one another; functions count as such."""


def is_plain(text: str, *, letters: bool) -> bool:
    """Return whether evaluating ``text`` computes something small and does nothing else.

    Plain are numbers, the operators of arithmetic, names of one letter, the usual functions of one variable, and lists
    of these and of texts. Anything else a policy may write to reach what evaluates it: names, attributes, calls,
    subscripts, comprehensions, and numbers that take minutes to compute.

    Args:
        text: What would be given to :func:`eval`, or to a library that calls it.
        letters: Whether names of one letter and constants are plain. They are symbols to a library, and variables of
            whoever calls :func:`eval` itself.
    """
    if len(text) > _MOST_CHARACTERS:
        return False
    try:
        tree = ast.parse(text.strip(), mode="eval")
        if not letters and any(isinstance(node, ast.Name) for node in ast.walk(tree)):
            return False
        return _is_plain(tree.body, powers=0)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _is_plain(node: ast.expr, powers: int) -> bool:
    if isinstance(node, ast.List | ast.Tuple):
        return all(isinstance(each, ast.Constant) or _is_plain(each, powers) for each in node.elts)
    return _is_formula(node, powers)


def _is_formula(node: ast.expr, powers: int) -> bool:
    """Return whether it is a formula: no list or text is multiplied, and no power is a tower."""
    if isinstance(node, ast.Constant):
        return _is_number(node.value)
    if isinstance(node, ast.Name):
        return len(node.id) == 1 or node.id in _CONSTANTS
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub | ast.UAdd) and _is_formula(node.operand, powers)
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Pow | ast.BitXor):  # what sympy reads as a power when it is told to
            low = powers < _MOST_POWERS and _is_exponent(node.right)
            return low and _is_formula(node.left, powers + 1)
        arithmetic = isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div | ast.FloorDiv | ast.Mod)
        return arithmetic and _is_formula(node.left, powers) and _is_formula(node.right, powers)
    if isinstance(node, ast.Call):
        is_known = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
        is_call = is_known and powers <= _MOST_POWERS and not node.keywords and len(node.args) == 1
        return is_call and _is_formula(node.args[0], powers + 1)
    return False


def _is_exponent(node: ast.expr) -> bool:
    """Return whether it is a small number, a fraction of such, or a formula of letters without powers."""
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub | ast.UAdd) and _is_exponent(node.operand)
    if isinstance(node, ast.BinOp):
        known = isinstance(node.op, ast.Add | ast.Sub | ast.Div)
        return known and _is_exponent(node.left) and _is_exponent(node.right)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and abs(node.value) <= _GREATEST_EXPONENT
    return isinstance(node, ast.Name) and len(node.id) == 1


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and len(str(value)) <= _MOST_DIGITS
