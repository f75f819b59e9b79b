"""Options of `megatron_train` are checked before Megatron-Core is needed."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

from roll.config import ConfigError
from roll.strategies.training.megatron.options import MegatronOptions


def test_the_keys_of_the_guides_are_taken() -> None:
    options = MegatronOptions.from_mapping(
        {
            "tensor_model_parallel_size": 2,
            "pipeline_model_parallel_size": 2,
            "virtual_pipeline_model_parallel_size": 4,
            "context_parallel_size": 2,
            "expert_model_parallel_size": 4,
            "expert_tensor_parallel_size": None,
            "sequence_parallel": True,
            "use_distributed_optimizer": True,
            "overlap_grad_reduce": True,
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
            "moe_token_dispatcher_type": "alltoall",
            "moe_grouped_gemm": True,
            "moe_router_dtype": "fp32",
            "moe_shared_expert_overlap": False,
            "moe_router_force_load_balancing": False,
            "decoder_first_pipeline_num_layers": 3,
        }
    )
    assert options.model_parallel_size == 8 and options.virtual_stages == 4
    assert options.num_layers_in_first_pipeline_stage == 3
    assert MegatronOptions.from_mapping(None) == MegatronOptions()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tensor_paralel_size": 2}, "tensor_paralel_size"),
        ({"tensor_model_parallel_sizes": 2}, "tensor_model_parallel_size"),
        ({"tensor_model_parallel_size": 0}, "tensor_model_parallel_size = 0"),
        ({"recompute_granularity": "sel"}, "recompute_granularity = 'sel'"),
        ({"virtual_pipeline_model_parallel_size": 2}, "needs a pipeline"),
        ({"sequence_parallel": True}, "needs tensor parallelism"),
        ({"overlap_param_gather": True}, "needs use_distributed_optimizer and overlap_grad_reduce"),
        ({"recompute_granularity": "selective", "recompute_num_layers": 1}, "belong to recompute_granularity=full"),
        ({"recompute_granularity": "full", "moe_layer_recompute": True}, "belong to recompute_granularity=selective"),
        (
            {"moe_token_dispatcher_type": "allgather", "pipeline_model_parallel_size": 2},
            "set moe_token_dispatcher_type to alltoall",
        ),
        ({"tensor_model_parallel_size": 2, "expert_model_parallel_size": 2}, "need sequence_parallel"),
    ],
    ids=lambda value: next(reversed(value)) if isinstance(value, dict) else "",
)
def test_wrong_and_contradictory_options_are_errors_with_their_key_path(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        MegatronOptions.from_mapping(given, "actor_train.strategy_args.strategy_config")
    assert said in str(caught.value)
    assert "actor_train.strategy_args.strategy_config" in str(caught.value)


def test_a_missing_package_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name == "roll.strategies.training.megatron.core" or name.partition(".")[0] == "megatron":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "megatron", None)
    with pytest.raises(ImportError, match=r"pip install 'roll-rl\[megatron\]'"):
        importlib.import_module("roll.strategies.training.megatron.core")
