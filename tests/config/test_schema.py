"""The JSON Schema of the keys, held against the shipped files by somebody else's validator."""

from __future__ import annotations

from functools import cache
from typing import Any

import jsonschema
import pytest
import yaml

from roll.config import AgenticConfig, RunConfig
from roll.config.composing import compose
from roll.config.loading import kind_of
from roll.config.schema import json_schema


@cache
def schema(kind: type[RunConfig]) -> jsonschema.Draft202012Validator:
    made = json_schema(kind)
    jsonschema.Draft202012Validator.check_schema(made)
    return jsonschema.Draft202012Validator(made)


def complaints(written: Any) -> list[str]:
    return [error.message for error in schema(AgenticConfig).iter_errors(written)]


@pytest.mark.long
@pytest.mark.parametrize("name", ["sokoban", "frozen_lake", "rlvr_math", "sft_sokoban", "eval_math", "mixed"])
def test_a_shipped_file_is_as_the_schema_says(name: str) -> None:
    composed, path = compose(name)
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert [error.message for error in schema(kind_of(composed)).iter_errors(written)] == []


def test_a_misspelt_key_and_a_wrong_value_are_found() -> None:
    assert "'max_stepz' does not match" in complaints({"max_stepz": 3})[0]
    assert len(complaints({"train_env_manager": {"group_sise": 8}, "pg_clip": -1, "adv_estimator": 3})) == 3


def test_a_name_alone_an_interpolation_an_alias_and_a_chosen_file_are_fine() -> None:
    assert not complaints({"train_env_manager": {"tags": "SimpleSokoban"}, "max_steps": "${seed}", "seed": 1})
    assert not complaints({"actor_train/strategy": "deepspeed_zero2", "track_with": "jsonl", "save_steps": 5})
