"""What the translation records of every foreign key."""

from __future__ import annotations

from typing import Any

import pytest

import roll.config.dialects.translation as translation
from roll.config.dialects import ForeignKey, translate
from roll.config.dialects.rows import Guide, Impossible, Row, impossible
from roll.config.rlvr import RLVRConfig

_GUIDE = Guide(
    "Elsewhere",
    (
        Row("elsewhere.steps", "max_steps"),
        Row("elsewhere.color", note="there is nothing to paint"),
        Row("elsewhere.engine", convert=lambda value, look: Impossible("no such engine", "use vllm")),
        *impossible("needs a rocket", "elsewhere.fly"),
    ),
)


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "GUIDES", (*translation.GUIDES, _GUIDE))


def _states(tree: dict[str, Any]) -> dict[str, ForeignKey]:
    return {each.key: each for each in translate({"elsewhere": tree}, RLVRConfig).keys}


def test_every_key_is_recorded_with_what_became_of_it() -> None:
    found = _states({"steps": 3, "color": "red", "engine": "x", "fly": True})

    assert found["elsewhere.steps"] == ForeignKey("elsewhere.steps", "translated", ("max_steps",))
    assert found["elsewhere.color"] == ForeignKey("elsewhere.color", "no_effect", why="there is nothing to paint")
    assert found["elsewhere.engine"].state == found["elsewhere.fly"].state == "impossible"
    assert found["elsewhere.engine"].why == "no such engine; nearest: use vllm"


def test_what_is_impossible_is_a_problem_of_a_run_and_sets_nothing() -> None:
    translated = translate({"elsewhere": {"fly": True, "steps": 3}}, RLVRConfig)

    (problem,) = translated.problems
    assert (problem.path, problem.message) == ("elsewhere.fly", "not possible here: needs a rocket.")
    assert translated.data == {"max_steps": 3}


@pytest.mark.parametrize("off", [False, None])
def test_an_impossible_key_that_is_off_asks_for_nothing(off: bool | None) -> None:
    assert translate({"elsewhere": {"fly": off}}, RLVRConfig).problems == []
    assert _states({"fly": off})["elsewhere.fly"].state == "no_effect"
