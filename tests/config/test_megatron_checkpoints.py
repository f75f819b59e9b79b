"""Weights in Megatron's own format, as other systems name them, are what the trainer begins with."""

from __future__ import annotations

from typing import Any

import pytest

from roll.config.dialects import Translation, translate
from roll.config.rlvr import RLVRConfig
from roll.config.worker import StrategyArgs

ACTOR = "actor_rollout_ref.actor"


def translated(tree: dict[str, Any]) -> Translation:
    return translate(tree, RLVRConfig)


def verl(**megatron: Any) -> Translation:
    return translated({"actor_rollout_ref": {"actor": {"strategy": "megatron", "megatron": megatron}}})


def test_megatron_weights_of_chatlearn_stand_beside_the_model_of_its_sampler() -> None:
    models = {"policy_trainer": {"load": "mcore"}, "policy": {"load": "hf"}}
    of_megatron = translated({"runtime_args": {"train_backend": "megatron"}, "models": models})
    assert of_megatron.data["pretrain"] == "hf"
    strategy = StrategyArgs.model_validate(of_megatron.data["actor_train"]["strategy_args"])
    assert (strategy.strategy_name, strategy.strategy_config) == ("megatron_train", {"load": "mcore"})
    assert strategy.begins_with_own_weights

    referring = {**models, "ref_policy": {"load": "mcore"}}
    referring["policy_trainer"] = {"load": "mcore", "kl_coef": 0.1}
    with_reference = translated({"runtime_args": {"train_backend": "megatron"}, "models": referring})
    assert with_reference.data["reference"]["strategy_args"] == {
        "strategy_name": "megatron_infer",
        "strategy_config": {"load": "mcore"},
    }

    of_fsdp = translated({"runtime_args": {"train_backend": "fsdp"}, "models": models})
    strategy = StrategyArgs.model_validate(of_fsdp.data["actor_train"]["strategy_args"])
    assert (of_fsdp.data["pretrain"], strategy.begins_with_own_weights) == ("hf", False)


@pytest.mark.parametrize("switch", [{}, {"use_dist_checkpointing": False}])
def test_a_checkpoint_of_verl_counts_where_it_is_switched_on(switch: dict[str, Any]) -> None:
    found = verl(dist_checkpointing_path="C", **switch)
    record = next(key for key in found.keys if key.key.endswith("dist_checkpointing_path"))
    assert record.state == "no_effect" and not found.problems


def test_a_checkpoint_of_verl_has_no_prefix() -> None:
    on = {"use_dist_checkpointing": True, "dist_checkpointing_path": "C"}
    assert not verl(**on, dist_checkpointing_prefix="").problems
    (problem,) = verl(**on, dist_checkpointing_prefix="actor.").problems
    assert problem.path == f"{ACTOR}.megatron.dist_checkpointing_prefix"
