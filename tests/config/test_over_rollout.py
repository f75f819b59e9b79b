"""Steps that go on without their latest groups: how many are begun, and what the keys contradict."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.config import AgenticConfig, ConfigError, ConfigWarning, RLVRConfig, load
from roll.config.over_rollout import OverRollout

RLVR: dict[str, Any] = {
    "rollout_batch_size": 8,
    "num_return_sequences_in_group": 4,
    "rewards": {"math_rule": {"tag_included": ["arithmetic"]}},
    "actor_train": {"data_args": {"file_name": "a.jsonl"}},
    "deterministic": False,
}
GAMES: dict[str, Any] = {
    "rollout_batch_size": 16,
    "deterministic": False,
    "train_env_manager": {"tags": ["one", "two"], "num_groups_partition": [3, 1], "env_groups": 4, "group_size": 4},
}


@given(ratio=st.floats(0, 0.99), groups=st.integers(1, 4096))
def test_a_step_never_goes_on_without_a_larger_share_than_asked_for(ratio: float, groups: int) -> None:
    spare = OverRollout(ratio=ratio).spare(groups)
    assert spare <= ratio * (groups + spare) + 1e-6
    assert spare + 1 > ratio * (groups + spare + 1) - 1e-6, "nor without a smaller one than there is room for"


def test_shares_without_an_exact_binary_form_are_not_rounded_down() -> None:
    assert [OverRollout(ratio=r / 10).spare(10 - r) for r in range(10)] == list(range(10))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"async_generation_ratio": 1.0}, "over_rollout.ratio"),
        ({"is_use_additional_prompts": True}, "is_use_additional_prompts"),
        ({"generate_opt_level": 0}, "generate_opt_level"),
        ({"over_rollout": {"ratio": 1.0}}, "over_rollout.ratio"),
        ({"over_rollout": {"ratio": 0.5, "wait_after_min": -1}}, "over_rollout.wait_after_min"),
    ],
)
def test_what_contradicts_it_is_a_problem(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load({**RLVR, "over_rollout": {"ratio": 0.5}, **changes}, kind=RLVRConfig)
    assert key in [problem.path for problem in caught.value.problems]


def said(config: dict[str, Any], kind: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConfigWarning)
        load(config, kind=kind)
    return [str(each.message) for each in caught if "over_rollout" in str(each.message)]


def test_a_share_that_is_less_than_a_group_is_said_to_do_nothing() -> None:
    (words,) = said({**RLVR, "over_rollout": {"ratio": 0.1}}, RLVRConfig)
    assert "(prompts 8)" in words and "at least 0.12" in words
    assert OverRollout(ratio=0.12).spare(8) == 1
    (words,) = said({**GAMES, "over_rollout": {"ratio": 0.3}}, AgenticConfig)
    assert "(two 1)" in words and "at least 0.5" in words, "three groups of the other tag are enough"
    assert said({**GAMES, "over_rollout": {"ratio": 0.5}}, AgenticConfig) == []


def test_a_run_that_should_be_reproducible_is_told_that_it_is_not() -> None:
    (words,) = said({**RLVR, "deterministic": True, "over_rollout": {"ratio": 0.5}}, RLVRConfig)
    assert "same seed does not give the same run" in words
    assert said({**RLVR, "deterministic": True}, RLVRConfig) == []
