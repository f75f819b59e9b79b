"""Counted devices become those of roles."""

from __future__ import annotations

import pytest

from roll.config import load
from roll.config.device_mapping import MAX_DEVICES
from roll.config.dialects.placement import Placement
from roll.config.errors import FixableError
from roll.config.rlvr import RLVRConfig


def test_roles_that_take_turns_have_all_devices() -> None:
    sets = Placement(2, 4).together("actor_train", "actor_infer")
    assert sets.values == {"num_gpus_per_node": 4}
    assert sets.fills == {"actor_train.device_mapping": "0-7", "actor_infer.device_mapping": "0-7", "cluster": "ray"}
    assert "ray" in sets.note


def test_roles_apart_have_devices_one_after_the_other() -> None:
    sets = Placement(1, 8).apart({"actor_train": 6, "actor_infer": 2, "reward": 0})
    assert sets.fills == {"actor_train.device_mapping": "0-5", "actor_infer.device_mapping": "6-7", "cluster": "ray"}


def test_roles_apart_cannot_have_more_than_there_are() -> None:
    with pytest.raises(FixableError, match="need 9 devices, and there are 8"):
        Placement(1, 8).apart({"actor_train": 8, "actor_infer": 1})


def test_one_device_needs_no_mapping_and_no_ray() -> None:
    assert Placement(1, 1).together("actor_train").fills == {}


def test_more_devices_than_any_cluster_has_are_refused() -> None:
    with pytest.raises(FixableError, match="more than"):
        Placement(MAX_DEVICES, 2)


@pytest.mark.filterwarnings("ignore::roll.config.ConfigWarning")
def test_the_devices_of_a_verl_trainer_belong_to_its_roles() -> None:
    loaded = load(
        {
            "trainer": {"nnodes": 2, "n_gpus_per_node": 8},
            "actor_rollout_ref": {"rollout": {"name": "vllm", "tensor_model_parallel_size": 2}},
            "algorithm": {"adv_estimator": "gae"},
            "actor_train": {"data_args": {"file_name": "x.jsonl"}, "device_mapping": "0-7"},
            "rewards": {"math_rule": {}},
        },
        kind=RLVRConfig,
    )
    assert loaded.cluster == "ray" and loaded.nodes == 2
    assert loaded.actor_train.device_mapping == list(range(8)), "what was said natively stays"
    assert loaded.actor_infer.device_mapping == list(range(16)) and loaded.actor_infer.workers == 8
    assert loaded.critic is not None and loaded.critic.device_mapping == list(range(16))
