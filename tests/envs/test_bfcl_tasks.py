"""BFCL's multi-turn tasks against its own checker and its own right answers (the package is installed apart)."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest

from roll.envs import Tag, make
from roll.envs.errors import EnvConfigError

pytest.importorskip("bfcl_eval", reason="bfcl-eval is not installed: tests/envs/bfcl.txt")


def call_text(env: Any, written: str) -> str:
    """A right call of the library (Python) as a policy writes it."""
    call = ast.parse(written, mode="eval").body
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    names = list(env.toolbox._tools[call.func.id].parameters["properties"])
    values = {name: ast.literal_eval(value) for name, value in zip(names, call.args, strict=False)}
    values |= {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    return f"<tool_call>\n{json.dumps({'name': call.func.id, 'arguments': values})}\n</tool_call>"


def play(env: Any, seed: int, spoil: int | None = None) -> tuple[float, bool]:
    env.reset(seed=seed)
    reward, over = 0.0, False
    for number, calls in enumerate(env.right):
        for written in () if number == spoil else calls:
            _, reward, over, _, info = env.step(call_text(env, written))
            assert not over and info["messages"][0]["role"] == "tool" and not info["metrics"]["tool_calls_wrong"]
        _, reward, over, _, _ = env.step("Done.")
    return reward, over


@pytest.mark.parametrize("category", ["multi_turn_base", "multi_turn_miss_param", "multi_turn_long_context"])
def test_the_right_calls_of_the_library_solve_its_tasks(category: str) -> None:
    env = make(Tag("Bfcl", "bfcl", {"category": category}), max_steps=200)
    played = [play(env, seed) for seed in range(12)]
    assert played == [(1.0, True)] * 12


def test_without_some_of_the_calls_they_are_not_solved() -> None:
    env = make(Tag("Bfcl", "bfcl"), max_steps=200)
    for seed in range(6):
        env.reset(seed=seed)
        asked = next(number for number, calls in enumerate(env.right) if calls)
        assert play(env, seed, spoil=asked) == (0.0, True)


def test_worlds_of_episodes_that_are_played_together_are_apart() -> None:
    env, other = (make(Tag("Bfcl", "bfcl"), max_steps=200) for _ in range(2))
    env.reset(seed=3)
    before = [vars(world).copy() for world in other_worlds(other, 3)]
    play(env, 3)
    assert [vars(world) for world in other.worlds.values()] == before


def other_worlds(env: Any, seed: int) -> list[Any]:
    env.reset(seed=seed)
    return list(env.worlds.values())


def test_calls_that_cannot_be_are_told_and_change_nothing() -> None:
    env = make(Tag("Bfcl", "bfcl"), max_steps=200)
    env.reset(seed=0)
    _, _, _, _, info = env.step('<tool_call>\n{"name": "__import__", "arguments": {"name": "os"}}\n</tool_call>')
    assert (
        "there is no tool '__import__'" in info["messages"][0]["content"] and info["metrics"]["tool_calls_wrong"] == 1
    )
    name = next(iter(env.toolbox._tools))
    text = env.step(f'<tool_call>\n{{"name": "{name}", "arguments": {{"no_such": 1}}}}\n</tool_call>')[4]["messages"]
    assert "error" in text[0]["content"]


def test_other_categories_are_told() -> None:
    with pytest.raises(EnvConfigError, match="use one of multi_turn_base"):
        make(Tag("Bfcl", "bfcl", {"category": "multi_turn_composite"}))
