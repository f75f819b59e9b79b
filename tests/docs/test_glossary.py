"""The glossary names code that is there, and has every word that travels between rooms of the house."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from docs_support import ROOT

from roll.config import AgenticConfig, EvaluationConfig, RLVRConfig

PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
ROWS = [row.split(" | ") for row in re.findall(r"^\| (.+) \|$", PAGE, re.MULTILINE) if not row.startswith("Word")]

ORDINARY = set(
    """
    algorithm args async base call calls client collected command concurrency config data dataset decoder deviation
    died down entry error event exercise fixable folder found generating has head in inputs joint key keys limit
    limits loads local loop mismatch missing model name no not options output params processes reason registered
    registration rows settings shares spec stored tells threads timeout timeouts train unknown use warning wrong
    composite deep speed frozen lake fsdp hf http infer jsonl megatron sglang sokoban tensorboard vllm
    """.split()
)
"""Words of programming and proper names, which need no explanation."""


@cache
def _trees() -> dict[Path, ast.Module]:
    paths = sorted((ROOT / "roll").rglob("*.py"))
    return {path.relative_to(ROOT): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def _defined() -> set[str]:
    """Return the names of classes, functions and constants anywhere in the library."""
    names = set()
    for tree in _trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.AnnAssign | ast.Assign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def _travelling() -> set[str]:
    """Return the classes that a package imports from another one."""
    classes = {node.name for tree in _trees().values() for node in tree.body if isinstance(node, ast.ClassDef)}
    found = set()
    for path, tree in _trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("roll."):
                if str(node.module).split(".")[1] != path.parts[1]:
                    found |= {alias.name for alias in node.names if alias.name in classes}
    return found


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", name)]


def _keys() -> set[str]:
    """Return every key of a configuration, at any depth."""
    found: set[str] = set()

    def visit(schema: object) -> None:
        if isinstance(schema, dict):
            found.update(schema.get("properties", {}))
            for value in schema.values():
                visit(value)
        elif isinstance(schema, list):
            for value in schema:
                visit(value)

    for kind in (AgenticConfig, RLVRConfig, EvaluationConfig):
        visit(kind.model_json_schema())
    return found


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_code_of_a_word_is_there(row: list[str], defined: set[str], keys: set[str]) -> None:
    named = re.findall(r"`([^`]+)`", row[-1])
    assert named, "say where the word is in the code"
    for name in named:
        assert name.removesuffix(":") in (keys if name.endswith(":") else defined)


@pytest.fixture(scope="module")
def defined() -> set[str]:
    return _defined()


@pytest.fixture(scope="module")
def keys() -> set[str]:
    return _keys()


def test_no_word_is_explained_twice() -> None:
    words = [row[0] for row in ROWS]
    assert len(words) == len(set(words))


@pytest.mark.long
def test_every_word_that_travels_between_packages_is_explained() -> None:
    explained = {word for row in ROWS for word in _words(row[0])}
    missing = {
        word: name
        for name in sorted(_travelling())
        for word in _words(name)
        if word not in ORDINARY and not {word, word.removesuffix("s")} & explained
    }
    assert not missing, "explain these words in docs/glossary.md, or name the class in words that are there"
