"""MindSpeed-RL: keys that count only beside others, and values that ask for what is not here."""

from __future__ import annotations

from typing import Any

import pytest

from roll.config.dialects import ForeignKey, Translation, translate
from roll.config.rlvr import RLVRConfig


def _translated(**sections: Any) -> Translation:
    return translate(sections, RLVRConfig)


def _record(translation: Translation, key: str) -> ForeignKey:
    return next(record for record in translation.keys if record.key == key)


def test_the_length_of_a_sample_is_that_of_the_engine() -> None:
    both = _translated(megatron_training={"seq_length": 2048}, generate_config={"max_model_len": 4096})

    assert (both.data["sequence_length"], both.problems) == (4096, [])
    assert _record(both, "megatron_training.seq_length").state == "no_effect"
    assert _translated(megatron_training={"seq_length": 2048}).data["sequence_length"] == 2048


def test_the_model_is_the_one_in_the_format_of_the_model_hub() -> None:
    translation = _translated(
        megatron_training={"tokenizer_name_or_path": "./Qwen3-8B"}, actor_config={"load": "./Qwen3-8B-tp4"}
    )

    assert (translation.data["pretrain"], translation.problems) == ("./Qwen3-8B", [])


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("generate_config", "torchair_graph", True),
        ("generate_config", "ascend_scheduler_config_enabled", True),
        ("megatron_training", "use_ascend_coc", True),
        ("megatron_training", "stage", "ray_online_dpo"),
        ("actor_config", "num_layer_list", "7,7,8,8,8,8,8,7"),
        ("rl_config", "blocking", False),
        ("rl_config", "use_integrated_worker", False),
    ],
)
def test_what_is_not_here_is_refused_by_name(section: str, key: str, value: Any) -> None:
    translation = _translated(**{section: {key: value}})

    assert _record(translation, f"{section}.{key}").state == "impossible"
    assert [problem.path for problem in translation.problems] == [f"{section}.{key}"]


def test_groups_without_variance_are_replaced_only_so_often() -> None:
    dapo = {"filter_groups_enable": True, "filter_groups_max_batches": -1}
    off = {**dapo, "filter_groups_enable": False}

    assert _record(_translated(rl_config=dapo), "rl_config.filter_groups_max_batches").state == "impossible"
    assert _record(_translated(rl_config=off), "rl_config.filter_groups_max_batches").state == "no_effect"


@pytest.mark.parametrize(("devices", "machine"), [(16, 8), (2, 2)])
def test_policy_sampler_and_reference_take_turns_on_all_devices(devices: int, machine: int) -> None:
    data = _translated(rl_config={"actor_resource": {"num_npus": devices}, "init_kl_coef": 0.1}).data

    mapped = {role: data[role]["device_mapping"] for role in ("actor_train", "actor_infer", "reference")}
    assert len(set(mapped.values())) == 1
    assert (data["num_gpus_per_node"], data["cluster"]) == (machine, "ray")
