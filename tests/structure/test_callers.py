"""Whatever roll defines is called by roll, by an example or a script, or is shown to users in the documentation.

A configuration that ships calls what it names. What only tests and benchmarks use has no part in any run: it is
connected or deleted.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CALLED_BY_OTHERS = {
    "ChatHarness": "verifiers finds a harness in its module",
    "contains": "Gymnasium asks a space",
    "get_max_length": "transformers asks a cache",
    "get_mask_sizes": "transformers asks a cache",
    "get_seq_length": "transformers asks a cache",
    "is_zero3": "transformers asks a DeepSpeed configuration",
    "log_engine_initialized": "vLLM tells its loggers",
    "record_sleep_state": "vLLM tells its loggers",
    "update_from_generation_config": "vLLM tells sampling parameters what the model's folder says",
    "_postprocess": "Megatron-Core's model",
    "utcnow": "an environment asks the clock",
    "_repr_html_": "Jupyter shows what a cell ends with",
}
FOR_TESTS = {
    "parked": "how many bytes are away cannot be seen otherwise",
    "peak_buffer_bytes": "memory of weight sync cannot be seen otherwise",
    "restored": "tests leave registries as they found them",
}

# A decorator of any other kind may register what it decorates.
_PLAIN = set(
    "property staticmethod classmethod contextmanager asynccontextmanager dataclass runtime_checkable cache lru_cache "
    "cached_property".split()
)
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def definitions(tree: ast.Module) -> Iterator[_Definition]:
    for node in ast.walk(tree):
        if isinstance(node, _Definition) and not node.name.startswith("__"):
            decorators = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
            if {ast.unparse(each).rpartition(".")[2] for each in decorators} <= _PLAIN:
                yield node


def names_used(tree: ast.Module) -> Iterator[str]:
    """Names that are read, and strings that can be names; not imports and what packages offer: those only pass on."""
    passed_on: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("__all__", "_FROM"):
            passed_on |= set(ast.walk(node))
    for node in ast.walk(tree):
        if node in passed_on:
            continue
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[\w.:]+", node.value):
            yield from re.split("[.:]", node.value)


def names_shown() -> set[str]:
    """Names in the code of the documentation."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    code = [found for page in pages for found in re.findall(r"```.*?```|`[^`]+`", page.read_text("utf-8"), re.DOTALL)]
    return {name for text in code for name in re.findall(r"[A-Za-z_]\w*", text)}


def names_configured() -> set[str]:
    """Classes that the configurations which ship name: ``name: SomeClass`` beside the ``path:`` of its module."""
    pages = (path.read_text("utf-8") for path in (ROOT / "roll" / "presets").rglob("*.yaml"))
    return {name for page in pages for name in re.findall(r"path: roll\.[\w.]+\n\s*name: (\w+)$", page, re.MULTILINE)}


def without_callers(defined: dict[str, str], used: set[str]) -> list[str]:
    return [f"{place}: {name}" for name, place in sorted(defined.items()) if name not in used]


@pytest.mark.long
def test_whatever_roll_defines_is_called_or_shown_to_users() -> None:
    defined: dict[str, str] = {}
    used = names_shown() | names_configured() | CALLED_BY_OTHERS.keys() | FOR_TESTS.keys()
    for path in sorted(path for folder in ("roll", "examples", "scripts") for path in (ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        used |= set(names_used(tree))
        if path.is_relative_to(ROOT / "roll"):
            defined |= {node.name: f"{path.relative_to(ROOT)}:{node.lineno}" for node in definitions(tree)}
    assert len(defined) > 2000
    assert not without_callers(defined, used), "connect these to a run or a page, or delete them"
    assert not without_callers(dict.fromkeys(CALLED_BY_OTHERS | FOR_TESTS, "exempt"), set(defined)), "these are gone"


def test_a_definition_that_is_only_passed_on_has_no_caller() -> None:
    source = """
from elsewhere import passed_on
__all__ = ["passed_on", "by_name", "alone"]
_FROM = {"passed_on": "elsewhere", "alone": "here"}
def alone(): "Return what `alone` returns."
def read(): return read
class Worker:
    def by_name(self): pass
    @property
    def never(self): pass
    @register("registered")
    def registered(self): pass
call("by_name", Worker)
"""
    tree = ast.parse(source)
    defined = {node.name: "here" for node in definitions(tree)}
    assert set(defined) == {"alone", "read", "Worker", "by_name", "never"}
    assert without_callers(defined, set(names_used(tree))) == ["here: alone", "here: never"]
