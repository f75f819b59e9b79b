"""Calls of tools, compared with those that are right."""

from __future__ import annotations

import asyncio

import pytest

from roll.rewards.base import RewardRequest
from roll.rewards.registry import make_verifier

_RIGHT = '[{"name": "weather", "arguments": {"city": "Rome", "days": 2}}, {"name": "time", "arguments": {}}]'


def _score(response: str, truth: str = _RIGHT) -> float | None:
    request = RewardRequest(messages=[], response=response, ground_truth=truth)
    return asyncio.run(make_verifier("tool_calls")(request)).score


def _calls(*texts: str) -> str:
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in texts)


_TIME = '{"name": "time", "arguments": {}}'


@pytest.mark.parametrize(
    ("response", "score"),
    [
        (_calls('{"name": "weather", "arguments": {"days": 2, "city": "Rome"}}', _TIME), 1.0),
        (_calls(_TIME, '{"name": "weather", "arguments": {"city": "Rome", "days": 2}}'), 1.0),
        (_calls(_TIME, '{"name": "weather", "arguments": "{\\"city\\": \\"Rome\\", \\"days\\": 2}"}'), 1.0),
        (_calls(_TIME, '{"name": "weather", "arguments": {"city": "Bonn", "days": 2}}'), 0.0),
        (_calls(_TIME), 0.0),
        (_calls(_TIME, "no JSON"), 0.0),
        ("It is sunny.", 0.0),
        (f"<think>{_calls(_TIME)}", 0.0),
    ],
)
def test_names_and_arguments_must_be_those_of_the_ground_truth(response: str, score: float) -> None:
    assert _score(response) == score


def test_where_no_call_is_right_an_answer_in_words_is() -> None:
    assert _score("Which city?", "[]") == 1.0
    assert _score(_calls(_TIME), "[]") == 0.0


def test_a_ground_truth_that_is_no_list_of_calls_is_not_graded() -> None:
    assert _score("It is sunny.", "sunny") is None
