"""What files of ROLL name that is not here, engines of several devices, and files that describe their model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roll.convert import Conversion, Foreign, convert, read

_PLAYED: dict[str, Any] = {
    "rollout_batch_size": 8,
    "val_batch_size": 8,
    "adv_estimator": "reinforce",
    "train_env_manager": {"num_env_groups": 2, "group_size": 4, "tags": ["T"]},
    "val_env_manager": {"num_env_groups": 8, "group_size": 1, "tags": ["T"]},
}


def _played(tag: dict[str, Any], **more: Any) -> Conversion:
    return convert(Foreign({**_PLAYED, "custom_envs": {"T": tag}, **more}, Path("job.yaml")), "roll")


def test_an_environment_that_is_not_here_wants_a_module_that_brings_it() -> None:
    conversion = _played({"env_type": "webshop"})

    assert conversion.ok, conversion.problems
    assert (conversion.native["env_modules"], conversion.native["custom_envs"]["T"]["env_type"]) == (
        ["webshop_env"],
        "webshop",
    )
    assert {key.key: key.state for key in conversion.keys}["custom_envs.T.env_type"] == "impossible"


def test_a_module_that_the_file_names_is_trusted_to_bring_it() -> None:
    conversion = _played({"env_type": "webshop"}, env_modules=["mine.shop"])

    assert conversion.native["env_modules"] == ["mine.shop"]


def test_options_of_a_puzzle_are_those_of_its_library() -> None:
    conversion = _played({"env_type": "rg:chain_sum", "env_config": {"size": 50, "seed": 7, "min_terms": 3}})

    assert conversion.native["custom_envs"]["T"] == {
        "env_type": "reasoning_gym",
        "env_config": {"dataset": "chain_sum", "size": 50, "questions_seed": 7, "config": {"min_terms": 3}},
    }


def test_a_template_and_a_tracker_of_rolls_own_have_stand_ins() -> None:
    conversion = _played(
        {"env_type": "sokoban"},
        actor_train={"data_args": {"template": "qwen3_coder"}},
        track_with="ml_tracker",
        tracker_kwargs={"project": "x"},
    )

    assert conversion.ok, conversion.problems
    assert conversion.native["actor_train"]["data_args"]["template"] == "native"
    assert conversion.native["track_with"] == "tensorboard"


@pytest.mark.parametrize("size", [2, 16])
def test_an_engine_has_the_devices_that_it_divides_its_model_among(size: int) -> None:
    engine = {"strategy_name": "vllm", "strategy_config": {"tensor_parallel_size": size}}
    conversion = _played(
        {"env_type": "sokoban"},
        num_gpus_per_node=8,
        actor_infer={"strategy_args": engine, "device_mapping": "list(range(0,8))"},
        actor_train={"device_mapping": "list(range(0,8))"},
    )

    key = "actor_infer.strategy_args.strategy_config.tensor_parallel_size"
    assert conversion.ok, conversion.problems
    assert {each.key: each.state for each in conversion.keys}[key] == ("translated" if size == 2 else "impossible")
    assert conversion.native["actor_infer"].get("num_gpus_per_worker") == (2 if size == 2 else None)


def test_a_description_of_an_architecture_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "grpo.yaml"
    path.write_text(
        "defaults:\n  - model: [qwen25_7b]\nmegatron_training: {seq_length: 512}\nrl_config: {gamma: 0.9}\n"
    )

    foreign = read([path])

    assert foreign.tree == {"megatron_training": {"seq_length": 512}, "rl_config": {"gamma": 0.9}}
    assert [(key.key, key.state) for key in foreign.left_out] == [("defaults.model", "no_effect")]


def test_a_description_agrees_with_the_model_that_is_called_so(tmp_path: Path) -> None:
    path = tmp_path / "grpo.yaml"
    path.write_text(
        "defaults:\n  - model: [qwen25_7b]\nmegatron_training: {tokenizer_name_or_path: ./Qwen2.5-7B-Instruct}\n"
    )

    assert [(key.state, key.to) for key in read([path]).left_out] == [("translated", ("pretrain",))]
