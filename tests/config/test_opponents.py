"""Opponents of a run: roles that sample and are not trained, and what they cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from roll.config import AgenticConfig, ConfigError, load
from roll.config.opponents import OpponentConfig, staying
from roll.distributed import plan_placement


def problems(**keys: Any) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        load(keys)
    return [problem.path for problem in raised.value.problems]


def test_an_opponent_is_a_role_with_an_engine_for_each_member_of_its_league() -> None:
    config = load({"pretrain": "toy", "opponents": {"start": {}, "past": {"league": {"keep": 3}}}})
    assert isinstance(config, AgenticConfig)
    roles = plan_placement(config).roles
    assert (roles["opponents.start"].size, roles["opponents.past"].size) == (1, 3)
    assert config.model_path("opponents.start") == "toy"
    other = load({"opponents": {"start": {"model_args": {"model_name_or_path": "toy_mixed"}}}})
    assert isinstance(other, AgenticConfig) and other.model_path("opponents.start") == "toy_mixed"


def test_opponents_stay_who_they_are_while_another_policy_is_measured() -> None:
    named = {"model_args": {"model_name_or_path": "toy_mixed"}}
    config = load({"pretrain": "toy", "opponents": {"start": {}, "other": named}})
    assert isinstance(config, AgenticConfig)
    measured = config.model_copy(update={"pretrain": "mine", "opponents": staying(config.opponents, config.pretrain)})
    assert [measured.model_path(f"opponents.{name}") for name in ("start", "other")] == ["toy", "toy_mixed"]
    assert config.opponents["start"].model_args.model_name_or_path is None


def test_an_opponent_samples_as_the_policy_unless_it_says_otherwise() -> None:
    config = load({"actor_infer": {"generating_args": {"temperature": 0.7, "top_p": 0.9}}})
    assert isinstance(config, AgenticConfig)
    policy = config.actor_infer.generating_args
    assert OpponentConfig().sampling(policy) == policy
    own = load({"opponents": {"start": {"generating_args": {"temperature": 0.2}}}})
    assert isinstance(own, AgenticConfig)
    found = own.opponents["start"].sampling(policy)
    assert (found.temperature, found.top_p) == (0.2, 0.9)


@pytest.mark.parametrize(
    ("opponents", "path"),
    [
        ({"policy": {}}, "opponents.policy"),
        ({"start": {"strategy_args": {"strategy_name": "fsdp_train"}}}, "opponents.start.strategy_args.strategy_name"),
        ({"start": {"device_mapping": [0]}}, "opponents.start.device_mapping"),
        ({"past": {"league": {}, "world_size": 2}}, "opponents.past.world_size"),
    ],
)
def test_what_an_opponent_cannot_be_is_told(opponents: dict[str, Any], path: str) -> None:
    assert path in problems(opponents=opponents, cluster="ray", actor_infer={"device_mapping": [0]})
