"""No code chooses by the kind of a run: each kind of configuration says itself what it is, plans and checks."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import roll.config.kinds  # noqa: F401  (all kinds)
from roll.config.run import RunConfig

_ROLL = Path(roll.config.kinds.__file__).parents[1]


def _kinds(base: type = RunConfig) -> set[str]:
    """Return the names of the models of all kinds of run, and of what they are made of; not that of every run."""
    below = base.__subclasses__()
    return {each.__name__ for each in below}.union(*map(_kinds, below))


def _with_unions(sources: Iterable[ast.Module]) -> set[str]:
    """Return these, and the names that a module gives to several: ``Both = AgenticConfig | RLVRConfig``."""
    kinds = _kinds()
    assigned = [each for source in sources for each in source.body if isinstance(each, ast.Assign)]
    named = {
        target.id: _names(each.value) for each in assigned for target in each.targets if isinstance(target, ast.Name)
    }
    return kinds | {name for name, parts in named.items() if parts & kinds}


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _choices(source: ast.Module, kinds: set[str]) -> Iterator[int]:
    """Yield the lines of ``isinstance`` on kinds that are no guards.

    A guard asserts, or refuses what it was given: ``if not isinstance(…): raise``.
    """
    guards: set[ast.AST] = set()
    for node in ast.walk(source):
        if isinstance(node, ast.Assert):
            guards.add(node.test)
        if isinstance(node, ast.If) and isinstance(node.test, ast.UnaryOp) and isinstance(node.body[-1], ast.Raise):
            guards.add(node.test.operand)
    for node in ast.walk(source):
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"
        if called and node not in guards and _names(node.args[1]) & kinds:  # type: ignore[attr-defined]
            yield node.lineno  # type: ignore[attr-defined]


def test_nothing_chooses_by_the_kind_of_a_run() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(_ROLL.rglob("*.py"))}
    sources = {path: ast.parse(text) for path, text in texts.items() if "isinstance(" in text or "Config |" in text}
    kinds = _with_unions(sources.values())
    found = [
        f"{path.relative_to(_ROLL)}:{line}" for path, source in sources.items() for line in _choices(source, kinds)
    ]
    assert not found, f"give the configuration a method or an attribute in place of isinstance: {', '.join(found)}"


def test_a_choice_is_found_and_a_guard_is_not() -> None:
    source = """
Both = AgenticConfig | RLVRConfig
def guard(config):
    assert isinstance(config, AgenticConfig)
    if not isinstance(config, RLConfig):
        fix = "another"
        raise ValueError(fix)
    return isinstance(config, RunConfig)
def choice(config):
    if isinstance(config, SFTConfig):
        return 1
    if not isinstance(config, Both):
        return 2
    return isinstance(config, PromptKeys | int) or config.mode == "both"
"""
    module = ast.parse(source)
    assert list(_choices(module, _with_unions([module]))) == [10, 12, 14]
