from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.env_managers import EnvManagerLimits, Templates, Timeouts
from roll.env_managers.metrics import aggregate_metrics
from roll.env_managers.templates import TURN_PLACEHOLDERS

VALUES = {name: f"<{name}>" for name in TURN_PLACEHOLDERS}


def test_every_placeholder_is_filled() -> None:
    template = " ".join(f"{{{name}}}" for name in sorted(TURN_PLACEHOLDERS))
    expected = " ".join(f"<{name}>" for name in sorted(TURN_PLACEHOLDERS))
    assert Templates("", template).turn(VALUES) == expected


@given(st.text(alphabet="{}abc observation\"':1", max_size=40))
def test_braces_in_an_observation_are_left_alone(observation: str) -> None:
    text = Templates("", "[{observation}]").turn({**VALUES, "observation": observation})
    assert text == f"[{observation}]"


def test_json_and_escaped_names_in_a_template_survive() -> None:
    templates = Templates("", '{"a": {"b": 1}} {} {0} {{observation}} {observation}')
    assert templates.turn(VALUES) == '{"a": {"b": 1}} {} {0} {observation} <observation>'


def test_an_unknown_placeholder_is_an_error_that_suggests_the_right_one() -> None:
    with pytest.raises(
        ValueError, match=r"agent_template: unknown placeholder \{observations\}; did you mean \{observation\}"
    ):
        Templates("", "{observations}")
    with pytest.raises(ValueError, match=r"agent_system_template: unknown placeholder \{turn_idx\}"):
        Templates("{turn_idx}", "{observation}")


def test_a_template_without_observation_is_an_error() -> None:
    with pytest.raises(ValueError, match="never see"):
        Templates("", "Go! {{observation}}")


@pytest.mark.parametrize("name", ["max_steps", "sequence_length", "max_new_tokens", "max_tokens_per_step"])
def test_limits_must_be_positive(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0"):
        EnvManagerLimits(**{name: 0})


def test_limits_that_leave_no_room_for_a_prompt_are_an_error() -> None:
    with pytest.raises(ValueError, match="sequence_length=64"):
        EnvManagerLimits(sequence_length=64, max_new_tokens=64)
    assert EnvManagerLimits(sequence_length=64, max_new_tokens=64, max_tokens_per_step=8).max_response_length == 8


@pytest.mark.parametrize("name", ["reset", "step", "generate"])
def test_timeouts_must_be_positive_or_none(name: str) -> None:
    Timeouts(**{name: None})
    with pytest.raises(ValueError, match=f"timeouts.{name}=0"):
        Timeouts(**{name: 0})


def test_metrics_are_aggregated_as_asked() -> None:
    turns = [{"a": 1.0, "success": 0.0}, {"a": 5.0, "b": 2.0, "success": 1.0}, {"a": 3.0, "success": 0.0}]
    for how, expected in {"last": 3.0, "mean": 3.0, "sum": 9.0, "max": 5.0}.items():
        assert aggregate_metrics(turns, {"a": how})["a"] == expected
    assert aggregate_metrics(turns, {}) == {"a": 3.0, "b": 2.0, "success": 0.0}
    assert aggregate_metrics([], {"a": "last"}) == {}
