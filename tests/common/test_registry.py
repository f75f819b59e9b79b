"""One registry of names: what it accepts, what it refuses and what it says then."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.common.registry import DuplicateNameError, Registry, UnknownNameError
from roll.common.spelling import did_you_mean, nearest

Function = Callable[..., Any]


@dataclass(frozen=True)
class Recipe:
    """A value to register: a record that no class or function stands behind."""

    salt: int


def one() -> int:
    return 1


def two() -> int:
    return 2


def functions() -> Registry[Function]:
    return Registry("number", advice="Decorate yours with @number({name!r}).")


def test_a_decorator_registers_and_returns_what_it_decorates() -> None:
    registry = functions()
    assert registry.register("one")(one) is one
    assert (registry.get("one"), registry.names(), "one" in registry, len(registry)) == (one, ["one"], True, 1)


def test_an_unknown_name_is_answered_with_the_nearest_all_others_and_the_advice() -> None:
    registry = functions()
    registry.add("first_number", one)
    registry.add("zwei", two)
    with pytest.raises(UnknownNameError) as caught:
        registry.get("First-Numbr")
    assert str(caught.value) == (
        "unknown number 'First-Numbr'. Did you mean 'first_number'? Known: first_number, zwei. "
        "Decorate yours with @number('First-Numbr')."
    )
    assert (caught.value.name, caught.value.nearest) == ("First-Numbr", "first_number")
    with pytest.raises(UnknownNameError, match="None is registered yet"):
        functions().get("anything")
    with pytest.raises(UnknownNameError, match="unknown number 'three'"):
        registry.remove("three")


def test_a_taken_name_is_refused_with_both_places() -> None:
    registry = functions()
    registry.add("number", one)
    with pytest.raises(DuplicateNameError) as caught:
        registry.add("number", two)
    places = [f"{__name__}.{each.__name__} ({__file__}, line {each.__code__.co_firstlineno})" for each in (one, two)]
    assert str(caught.value) == (
        f"number 'number' is already registered by {places[0]}: choose another name for {places[1]}."
    )
    assert registry.get("number") is one
    registry.add("number", two, replace=True)
    assert registry.get("number") is two


def test_values_are_placed_by_the_line_that_registers_them() -> None:
    registry: Registry[Recipe] = Registry("recipe", may_replace=True)
    registry.add("soup", Recipe(1))
    registry.add("soup", Recipe(1))
    with pytest.raises(DuplicateNameError, match=r"test_registry.py, line \d+\).*, or pass replace=True"):
        registry.add("soup", Recipe(2))
    for salt in (3, 4):
        registry.add("stew", Recipe(salt))
    assert registry.get("stew") == Recipe(4)


MODULE = """
from registry_of_the_test import REGISTRY

@REGISTRY.register("twice")
def twice(number, *, factor={factor}):
    return factor * number
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "registry_of_the_test.py").write_text(
        "from roll.common.registry import Registry\nREGISTRY = Registry('function')\n"
    )
    monkeypatch.delitem(sys.modules, "registry_of_the_test", raising=False)
    return tmp_path


def run_file(path: Path, name: str) -> None:
    """Execute a file as a module called ``name``, as ``python`` does with a script and ``import`` with a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_a_module_may_run_again_and_a_script_may_be_imported_but_another_file_may_not(folder: Path) -> None:
    script, other = folder / "mine_for_test.py", folder / "other_for_test.py"
    script.write_text(MODULE.format(factor=2))
    other.write_text(MODULE.format(factor=2))
    run_file(script, "__main__of_test")
    run_file(script, "mine_for_test")
    script.write_text("\n\n" + MODULE.format(factor=3))
    run_file(script, "mine_for_test")
    registry = importlib.import_module("registry_of_the_test").REGISTRY
    assert registry.get("twice")(2) == 6
    with pytest.raises(DuplicateNameError, match=r"mine_for_test.twice \(.*mine_for_test.py.*other_for_test.twice \("):
        run_file(other, "other_for_test")


def test_a_cell_of_a_notebook_may_run_again_after_an_edit() -> None:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    cells = [
        "from roll.common.registry import Registry\nregistry = Registry('grader')",
        "@registry.register('short')\nclass Short:\n    limit = 1",
        "@registry.register('short')\nclass Short:\n    limit = 2",
        "limit = registry.get('short').limit",
    ]
    for cell in cells:
        shell.run_cell(cell).raise_error()
    assert shell.user_ns["limit"] == 2


def test_what_is_named_only_is_imported_when_it_is_first_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "lazy_for_test", raising=False)
    (folder / "lazy_for_test.py").write_text("class Attribute: pass\n")
    (folder / "itself_for_test.py").write_text(MODULE.format(factor=5))
    registry = importlib.import_module("registry_of_the_test").REGISTRY
    registry.add_path("attribute", "lazy_for_test:Attribute")
    registry.add_path("twice", "itself_for_test")
    registry.add_path("silent", "lazy_for_test")
    assert registry.names() == ["attribute", "silent", "twice"] and "lazy_for_test" not in sys.modules
    assert registry.get("attribute") is sys.modules["lazy_for_test"].Attribute
    assert registry.get("twice")(1) == 5
    with pytest.raises(ImportError, match="lazy_for_test registers no function 'silent'"):
        registry.get("silent")
    with pytest.raises(DuplicateNameError, match="already registered by itself_for_test"):
        registry.add("twice", one)


def test_a_name_that_is_not_loaded_yet_is_taken_all_the_same() -> None:
    registry: Registry[Function] = Registry("number", built_in={"one": "json:loads", "all": "json"})
    for name in ("one", "all"):
        with pytest.raises(DuplicateNameError, match="already registered by json"):
            registry.add(name, two)


def test_what_is_undone_is_as_it_was_and_what_was_loaded_stays_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "itself_for_test", raising=False)
    (folder / "itself_for_test.py").write_text(MODULE.format(factor=7))
    registry = importlib.import_module("registry_of_the_test").REGISTRY
    registry.add_path("twice", "itself_for_test")
    registry.add("gone", one)
    with registry.restored():
        registry.remove("gone")
        registry.add("new", two)
        assert registry.get("twice")(1) == 7
    assert registry.names() == ["gone", "twice"]
    assert registry.get("twice")(1) == 7


def test_what_others_added_travels_to_another_process_and_what_is_built_in_does_not() -> None:
    registry: Registry[Any] = Registry("codec", built_in={"ours": "roll.common.spelling:nearest"})
    registry.add("theirs", one)
    registry.add("recipe", Recipe(1), is_built_in=False)
    registry.add("known", nearest)
    carried = pickle.loads(pickle.dumps(registry.added()))
    assert [each.name for each in carried] == ["recipe", "theirs"]
    there: Registry[Any] = Registry("codec")
    there.add("theirs", two)
    there.install(carried)
    assert (there.get("theirs"), there.get("recipe")) == (one, Recipe(1))


NAMES = st.text(st.characters(categories=("Ll", "Lu", "Nd")) | st.sampled_from("_-"), min_size=1, max_size=12)


@given(st.dictionaries(NAMES, st.integers()))
def test_whatever_is_registered_is_found_and_listed_once(recipes: dict[str, int]) -> None:
    registry: Registry[Recipe] = Registry("recipe")
    for name, salt in recipes.items():
        registry.add(name, Recipe(salt))
    assert registry.names() == sorted(recipes) == list(registry)
    assert {name: registry.get(name).salt for name in registry} == recipes


@given(st.sets(NAMES), NAMES, st.booleans())
def test_an_unknown_name_names_every_known_one(names: set[str], asked: str, shout: bool) -> None:
    registry: Registry[Recipe] = Registry("recipe")
    names.discard(asked)
    for name in names:
        registry.add(name, Recipe(0))
    with pytest.raises(UnknownNameError) as caught:
        registry.get(asked)
    assert all(name in str(caught.value) for name in names)
    assert caught.value.nearest is None or caught.value.nearest in names


@given(st.dictionaries(NAMES, st.integers(), min_size=1), st.data())
def test_a_block_that_is_restored_leaves_no_trace(recipes: dict[str, int], data: st.DataObject) -> None:
    registry: Registry[Recipe] = Registry("recipe")
    for name, salt in recipes.items():
        registry.add(name, Recipe(salt))
    with registry.restored():
        for name in data.draw(st.lists(NAMES)):
            registry.add(name, Recipe(-1), replace=True)
        for name in data.draw(st.sets(st.sampled_from(sorted(recipes)))):
            registry.remove(name)
    assert {name: registry.get(name).salt for name in registry} == recipes


@given(NAMES, st.sets(NAMES, max_size=8))
def test_the_nearest_of_names_that_hold_the_name_is_the_name(name: str, others: set[str]) -> None:
    folded = {other.lower().replace("-", "_") for other in others}
    if name.lower().replace("-", "_") not in folded:
        assert nearest(name, {*others, name}) == name


def test_advice_says_what_is_close_and_what_there_is() -> None:
    assert did_you_mean("grppo", ["ppo", "grpo"]) == "Did you mean 'grpo' or 'ppo'? Known: grpo, ppo."
    assert did_you_mean("zzz", ["ppo", "grpo"]) == "Known: grpo, ppo."
    assert nearest("Multiple-Choise", ["math", "multiple_choice"]) == "multiple_choice"
