"""Docstrings say what types cannot: the shapes of tensors, the errors of a function, where a formula is from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from docs_support import ROOT

SHAPE = re.compile(r"(?<!\w)\[[^\]]*[a-z][^\]]*\]|\bscalars?\b|\bany shape\b", re.IGNORECASE)
"""``[batch, sequence]`` and its like: names in brackets that index nothing."""
OURS = {"AssertionError", "NotImplementedError"}
"""They say that the code is wrong or incomplete, and nobody catches them."""
SOURCE = re.compile(r"\bSource:(?=.*(?:\b(?:19|20)\d\d\b|\bguide\b))", re.DOTALL)

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Public:
    """A public function of a module, or a public method of a public class (``owner``)."""

    path: str
    node: Function
    owner: ast.ClassDef | None = None

    def __str__(self) -> str:
        name = self.node.name if self.owner is None else f"{self.owner.name}.{self.node.name}"
        return f"{self.path}:{self.node.lineno} {name}"

    @property
    def own(self) -> str:
        return ast.get_docstring(self.node) or ""

    @property
    def docstring(self) -> str:
        """Its docstring and that of its class."""
        return f"{self.own}\n{'' if self.owner is None else ast.get_docstring(self.owner) or ''}"

    @property
    def arguments(self) -> list[ast.arg]:
        given = self.node.args
        extra = [each for each in (given.vararg, given.kwarg) if each is not None]
        return [*given.posonlyargs, *given.args, *given.kwonlyargs, *extra]

    @property
    def signature(self) -> tuple[str, ...]:
        """Its name and those of its arguments, by which the method of a protocol that it implements is found."""
        return (self.node.name, *(argument.arg for argument in self.arguments))

    @property
    def has_tensors(self) -> bool:
        annotations = [*(argument.annotation for argument in self.arguments), self.node.returns]
        return any(each is not None and re.search(r"\bTensor\b", ast.unparse(each)) for each in annotations)

    @property
    def is_of_a_protocol(self) -> bool:
        bases = self.owner.bases if self.owner is not None else []
        return any(re.match(r"(Protocol|ABC)\b", ast.unparse(base)) for base in bases)

    def raises(self) -> Iterator[str]:
        """Yield the exceptions that its own body makes; functions and classes inside it are not its body."""
        pending: list[ast.AST] = list(self.node.body)
        while pending:
            node = pending.pop()
            if isinstance(node, Function | ast.ClassDef | ast.Lambda):
                continue
            if isinstance(node, ast.Raise) and node.exc is not None:
                made = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
                name = ast.unparse(made).rsplit(".", 1)[-1]
                if name[0].isupper() and name not in OURS:
                    yield name
            pending.extend(ast.iter_child_nodes(node))


def functions_of(text: str, path: str = "example.py") -> Iterator[Public]:
    """Yield the public functions of a module, and the public methods of its public classes."""
    for node in ast.parse(text).body:
        if isinstance(node, Function) and not node.name.startswith("_"):
            yield Public(path, node)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for method in node.body:
                if isinstance(method, Function) and (not method.name.startswith("_") or method.name == "__call__"):
                    yield Public(path, method, node)


def without_shapes(functions: list[Public]) -> list[str]:
    """Return the functions of tensors that say no shape, nor does a protocol's method that they implement."""
    protocols = {each.signature for each in functions if each.is_of_a_protocol and SHAPE.search(each.docstring)}
    return [
        str(each)
        for each in functions
        if each.has_tensors and not SHAPE.search(each.docstring) and each.signature not in protocols
    ]


def without_errors(functions: list[Public]) -> list[str]:
    """Return the functions that raise what they do not name under ``Raises:``."""
    found = []
    for each in functions:
        section = re.search(r"^Raises:\n((?:[ \t]+.*\n?|\n)*)", each.own, re.MULTILINE)
        named = set(re.findall(r"\w+", section[1])) if section else set()
        missing = sorted(set(each.raises()) - named)
        if missing:
            found.append(f"{each}: {', '.join(missing)}")
    return found


@pytest.fixture(scope="module")
def functions() -> list[Public]:
    paths = sorted((ROOT / "roll").rglob("*.py"))
    return [
        each for path in paths for each in functions_of(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
    ]


@pytest.mark.long
def test_functions_of_tensors_say_their_shapes(functions: list[Public]) -> None:
    silent = without_shapes(functions)
    assert not silent, "say the shapes: [batch, sequence], scalar, or of any shape:\n" + "\n".join(silent)


def test_functions_that_raise_name_the_error(functions: list[Public]) -> None:
    silent = without_errors(functions)
    assert not silent, "name the error under 'Raises:':\n" + "\n".join(silent)


def registered() -> Iterator[tuple[str, str, str]]:
    """Yield the kind, the name and the docstring of what the library registers as an estimator or a loss."""
    for path in sorted((ROOT / "roll" / "algorithms").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            for decorator in node.decorator_list if isinstance(node, Function) else ():
                found = re.match(r"register_(advantage|loss)\('(\w+)'", ast.unparse(decorator))
                if found and isinstance(node, Function):
                    yield found[1], found[2], ast.get_docstring(node) or ""


def test_a_registered_algorithm_cites_its_source(functions: list[Public]) -> None:
    algorithms = list(registered())
    assert {("advantage", "grpo"), ("loss", "ppo")} <= {(kind, name) for kind, name, _ in algorithms}
    formulas = [each for each in functions if SOURCE.search(each.own)]
    silent = []
    for kind, name, text in algorithms:
        folder = {"advantage": "advantages", "loss": "losses"}[kind]
        # Estimators are registered as thin functions that call the formula of their name.
        called = [each for each in formulas if each.node.name == name and f"algorithms/{folder}/" in each.path]
        if not called and not SOURCE.search(text):
            silent.append(f"{kind} {name}")
    assert not silent, "end the docstring with 'Source:', a paper with its year or a guide:\n" + "\n".join(silent)


@pytest.mark.parametrize("module", ["kl", "reward_shaping", "losses/critic", "off_policy"])
def test_formulas_beside_the_registries_cite_their_source(functions: list[Public], module: str) -> None:
    path = f"roll/algorithms/{module}.py"
    silent = [
        str(each) for each in functions if each.path == path and each.has_tensors and not SOURCE.search(each.docstring)
    ]
    assert not silent, "end the docstring with 'Source:', a paper with its year or a guide:\n" + "\n".join(silent)


def test_what_is_not_said_is_found() -> None:
    text = '''
class Scorer(Protocol):
    def scores(self, batch: Tensor) -> Tensor:
        """Return scores, ``[batch]``."""

class Implementation:
    def scores(self, batch: Tensor) -> Tensor:
        """Return scores."""

    def scores_of(self, batch: Tensor) -> Tensor:
        """Return a list[int] of scores in [0, 1]."""
        if batch is None:
            raise errors.BatchError("no batch")

    def _hidden(self, batch: Tensor) -> Tensor:
        raise ValueError

def told(batch: Tensor) -> Tensor:
    """Return ``[batch, sequence]``.

    Raises:
        ValueError: Always.

    Not a BatchError.
    """
    raise ValueError
'''
    found = list(functions_of(text))
    assert [line.split()[-1] for line in without_shapes(found)] == ["Implementation.scores_of"]
    assert [line.split(" ", 1)[1] for line in without_errors(found)] == ["Implementation.scores_of: BatchError"]
    renamed = list(functions_of(text.replace("raise ValueError", "raise BatchError")))
    assert [line.split(" ", 1)[1] for line in without_errors(renamed)] == [
        "Implementation.scores_of: BatchError",
        "told: BatchError",
    ]
