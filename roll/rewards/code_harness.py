"""Runs inside the sandbox, beside a solution: calls it and reports on descriptor 3, apart from what it prints.

This source is sent into the sandbox, so it imports the standard library alone. The right answers never come
here: a function's value is reported and compared outside. Where a test must run here, success is a random word that is
read before the solution starts.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import sys
from decimal import Decimal
from fractions import Fraction
from types import FunctionType, GeneratorType, ModuleType
from typing import Any

REPORT = 3
_MADE_IN_PYTHON = 1 << 9
"""Flag of classes that a program made (Py_TPFLAGS_HEAPTYPE)."""
_HARMLESS = {
    "__annotations__", "__dict__", "__doc__", "__firstlineno__", "__getnewargs__", "__init__", "__match_args__",
    "__module__", "__new__", "__orig_bases__", "__parameters__", "__qualname__", "__replace__", "__repr__", "__slots__",
    "__static_attributes__", "__str__", "__weakref__",
}  # fmt: skip
"""Special names of a class that have no part in comparing its objects."""


def main(names: dict[str, Any]) -> None:
    """Read a request from standard input, do it, and report.

    Args:
        names: Names that the solution finds defined.
    """
    request = json.loads(sys.stdin.read())
    kind = request.pop("kind")
    module = _import_solution({name: value for name, value in names.items() if not name.startswith("_")})
    if kind == "call":
        value = _function(module, request["name"])(*request["arguments"])
        _report(json.dumps(encode(value)))
    elif kind == "evaluate":
        namespace = module.__dict__
        exec(compile(request["setup"], "setup.py", "exec"), namespace)
        _report(json.dumps(encode(eval(compile(request["expression"], "test.py", "eval"), namespace))))
    else:
        word = request.pop("word")
        _check(module, request["source"], kind)
        _report(word)


def _report(text: str) -> None:
    data = text.encode()
    while data:
        data = data[os.write(REPORT, data) :]


def _import_solution(names: dict[str, Any]) -> ModuleType:
    """Run ``solution.py`` as the module ``solution``, with ``names`` defined from the start."""
    module = ModuleType("solution")
    module.__dict__.update(names, __file__="solution.py")
    sys.modules["solution"] = module
    with open("solution.py", encoding="utf-8") as file:
        exec(compile(file.read(), "solution.py", "exec"), module.__dict__)
    return module


def _function(module: ModuleType, name: str) -> Any:
    """Return the function called ``name``, or the method of that name of a class ``Solution``."""
    if hasattr(module, name):
        return getattr(module, name)
    return getattr(module.Solution(), name)


def _check(module: ModuleType, source: str, kind: str) -> None:
    """Run a test; it passed if this returns."""
    namespace = _guarded(module, source)
    if kind == "pytest":
        _run_pytest(source)
        return
    exec(compile(source, "test.py", "exec"), namespace)
    if kind == "functions":
        _run_test_functions(namespace)


def _guarded(module: ModuleType, test: str) -> dict[str, Any]:
    """Return what a test sees of a solution: its names, with functions that return plain values.

    An object of the solution's own may call itself equal to everything. It only passes where the test makes such
    objects itself.
    """
    tree = ast.parse(test)
    bound = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    seen = ModuleType("solution")
    sys.modules["solution"] = seen
    for name, value in list(module.__dict__.items()):
        seen.__dict__[name] = _returning_plain(value, named - bound) if isinstance(value, FunctionType) else value
    return seen.__dict__


def _returning_plain(function: Any, classes: set[str]) -> Any:
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        return _plain(function(*arguments, **keywords), classes)

    return call


def _plain(value: Any, classes: set[str]) -> Any:
    """Return a value of the solution; raises TypeError if it is, or holds, an object of a class of its own."""
    kind = type(value)
    if kind in (list, tuple, set, frozenset):
        for item in value:
            _plain(item, classes)
    elif kind is dict:
        for item in (*value.keys(), *value.values()):
            _plain(item, classes)
    elif kind is FunctionType:
        return _returning_plain(value, classes)
    elif kind is GeneratorType:
        return (_plain(item, classes) for item in value)
    elif kind.__name__ not in classes and not _is_harmless(kind):
        raise TypeError(f"the solution returned a value of its own type {kind.__name__}")
    return value


def _is_harmless(kind: type) -> bool:
    """Whether objects of a class behave as Python's own: no method of the solution is called to compare them."""
    return all(_is_known(each) or not _methods(each) - _HARMLESS for each in kind.__mro__)


def _is_known(kind: type) -> bool:
    """Whether a class is one of Python's or of a library."""
    home = sys.modules.get(kind.__module__)
    return not kind.__flags__ & _MADE_IN_PYTHON or (
        kind.__module__ != "solution" and getattr(home, kind.__name__, None) is kind
    )


def _methods(kind: type) -> set[str]:
    return {name for name in vars(kind) if name.startswith("__")}


def _run_test_functions(namespace: dict[str, Any]) -> None:
    """Call every ``test_…`` function, and those methods of ``Test…`` classes."""
    ran = 0
    for name, value in list(namespace.items()):
        if name.startswith("test") and callable(value):
            value()
            ran += 1
        elif isinstance(value, type) and name.startswith("Test"):
            for method in [method for method in dir(value) if method.startswith("test")]:
                ran += 1
                _run_method(value, method)
    if not ran:
        raise AssertionError("the test has no test functions")


def _run_method(kind: type, method: str) -> None:
    import unittest

    if issubclass(kind, unittest.TestCase):
        result = kind(method).run()
        if result is None or not result.wasSuccessful():
            raise AssertionError(f"{kind.__name__}.{method} failed")
        return
    instance = kind()
    if hasattr(instance, "setup_method"):
        instance.setup_method()
    getattr(instance, method)()


def _run_pytest(source: str) -> None:
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # Whatever else is installed: it costs seconds.
    import pytest

    with open("test_solution.py", "w", encoding="utf-8") as file:
        file.write(source)
    code = pytest.main(["-q", "-p", "no:cacheprovider", "test_solution.py"])
    if code != 0:
        raise AssertionError(f"pytest ended with {code!r}")


def encode(value: Any) -> Any:
    """Return ``value`` in terms of JSON, so that ``roll.rewards.code_values.decode`` gives an equal one back.

    Raises:
        TypeError: It contains something else than plain values and containers.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return {"float": float(value).hex()}
    if isinstance(value, list):
        return [encode(item) for item in value]
    for name, kind in (("tuple", tuple), ("set", set), ("frozenset", frozenset)):
        if isinstance(value, kind):
            return {name: [encode(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, Decimal):
        return {"Decimal": str(value)}
    if isinstance(value, Fraction):
        return {"Fraction": [value.numerator, value.denominator]}
    if hasattr(value, "tolist"):  # Numbers and arrays of numpy.
        return encode(value.tolist())
    raise TypeError(f"a test cannot compare a value of type {type(value).__name__}")
