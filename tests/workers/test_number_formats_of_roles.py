"""A role whose configuration names no number format computes in that of its model, and as the policy's trainer does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from roll.config import ConfigError, RLVRConfig
from roll.config.loading import load
from roll.models.loading import load_model, load_tokenizer
from roll.planning.roles import role_demands
from roll.workers.engine import wire_dtype
from roll.workers.factory import scorer_job, trainer_job
from roll.workers.loading import load_role_model, number_format


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("half")
    load_model("toy", dtype="bf16").save_pretrained(folder)
    load_tokenizer("toy").save_pretrained(folder)
    return str(folder)


def run(pretrain: str, **changes: Any) -> RLVRConfig:
    keys: dict[str, Any] = {
        "pretrain": pretrain,
        "rewards": {"math_rule": {"verifiers": {"math": 1.0}}},
        "actor_train.data_args.file_name": ["problems.jsonl"],
        "actor_infer.strategy_args.strategy_name": "vllm",
        "num_return_sequences_in_group": 2,
        "use_kl_loss": True,
        "reference.strategy_args.strategy_name": "hf_infer",
    }
    return load({}, kind=RLVRConfig, overrides=keys | changes)


def formats(config: RLVRConfig) -> list[str]:
    return [number_format(config, role) for role in ("actor_train", "actor_infer", "reference")]


def test_unset_is_the_models_own(half: str) -> None:
    assert formats(run(half)) == ["bf16"] * 3
    assert formats(run("toy")) == ["fp32"] * 3
    assert formats(run(half, **{"actor_train.model_args.dtype": None})) == ["bf16"] * 3
    assert formats(run(half, **{"actor_train.model_args.dtype": "auto"})) == ["bf16"] * 3


def test_what_the_trainer_says_holds_for_all_roles_with_its_model(half: str) -> None:
    fp32 = {"actor_train.model_args.dtype": "fp32"}
    assert formats(run(half, **fp32)) == ["fp32"] * 3
    assert formats(run(half, **fp32, **{"actor_infer.model_args.dtype": "bf16"})) == ["fp32", "bf16", "fp32"]
    other = {"reference.model_args.model_name_or_path": half}
    assert formats(run("toy", **other)) == ["fp32", "fp32", "bf16"]


def test_weights_stay_in_fp32_and_arithmetic_wire_and_plan_follow(half: str) -> None:
    config = run(half)
    assert load_role_model(config, "actor_train").dtype == torch.float32
    assert trainer_job(config, "actor_train").options.mixed_precision
    assert scorer_job(config, "reference").options.mixed_precision
    assert wire_dtype(config) == torch.bfloat16
    assert wire_dtype(run("toy")) is None


@pytest.mark.parametrize(("changes", "expected"), [({}, 2), ({"actor_train.model_args.dtype": "fp32"}, 4)])
def test_a_plan_counts_the_bytes_of_what_will_be(half: str, changes: dict[str, Any], expected: int) -> None:
    demands = {demand.role: demand for demand in role_demands(run(half, **changes))}
    training, engine = demands["actor_train"].training, demands["actor_infer"].engine
    assert training is not None and engine is not None
    assert training.half is (expected == 2)
    assert engine.width == expected


def test_a_model_that_is_not_there_is_a_problem_of_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pretrain"):
        number_format(run(str(tmp_path / "absent")), "actor_infer")
