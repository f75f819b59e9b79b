"""What can be said of the vLLM strategy without vLLM."""

from __future__ import annotations

import sys

import pytest

from roll.config.errors import ConfigError
from roll.strategies.generation.vllm.errors import VllmNotInstalledError
from roll.strategies.generation.vllm.metrics import EngineCounters
from roll.strategies.generation.vllm.options import OWNED, EngineLimits, check_options, engine_arguments
from roll.strategies.generation.vllm.strategy import VllmStrategy

KNOWN = ["model", "gpu_memory_utilization", "block_size", "max_model_len", "load_format", "tensor_parallel_size"]


def test_keys_of_the_engine_pass_through() -> None:
    options = {"gpu_memory_utilization": 0.6, "block_size": 16, "max_model_len": 8000}
    assert check_options(options, names=KNOWN, max_length=8000) == options
    arguments = engine_arguments(EngineLimits("folder", 8, 512, "bf16"), options)
    assert arguments["gpu_memory_utilization"] == 0.6
    assert arguments["max_model_len"] == 8000
    assert arguments["dtype"] == "bfloat16"
    assert arguments["max_num_seqs"] == 8
    assert arguments["logprobs_mode"] == "processed_logprobs"


def test_all_bad_keys_are_told_at_once_with_what_to_do() -> None:
    options = {"gpu_memory_utilisation": 0.6, "max_num_seqs": 4, "max_model_len": 100, "xyzzy": 1}
    with pytest.raises(ConfigError) as caught:
        check_options(options, names=KNOWN, max_length=640)
    assert len(caught.value.problems) == 4
    text = str(caught.value)
    assert "did you mean 'gpu_memory_utilization'" in text
    assert "set max_running_requests" in text
    assert "up to 640 tokens" in text
    assert "actor_infer.strategy_args.strategy_config.xyzzy" in text


def test_what_roll_decides_wins_and_nothing_owned_is_left_open() -> None:
    arguments = engine_arguments(EngineLimits("folder", 8, 512, "fp32", seed=3), {"log_level": "INFO"})
    assert arguments["max_model_len"] == 512
    assert arguments["log_level"] == "INFO"
    assert arguments["seed"] == 3
    assert set(arguments) - set(OWNED) == {"max_model_len", "log_level", "scheduling_policy", "enable_prefix_caching"}


def test_a_divided_engine_starts_its_own_processes_unless_told_otherwise() -> None:
    limits = EngineLimits("folder", 8, 512, "bf16")
    key = "distributed_executor_backend"
    assert engine_arguments(limits, {"tensor_parallel_size": 2})[key] == "mp"
    assert engine_arguments(limits, {"tensor_parallel_size": 2, key: "ray"})[key] == "ray"
    assert key not in engine_arguments(limits, {"tensor_parallel_size": 1})


def test_no_options_need_no_engine() -> None:
    assert check_options(None) == {}


def test_a_missing_engine_is_told_with_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.delitem(sys.modules, "roll.strategies.generation.vllm.adapter", raising=False)
    monkeypatch.delattr("roll.strategies.generation.vllm.adapter", raising=False)
    for name in [name for name in sys.modules if name.startswith("vllm.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(VllmNotInstalledError, match="make vllm"):
        VllmStrategy("folder")
    with pytest.raises(VllmNotInstalledError, match="make vllm"):
        check_options({"block_size": 16})


@pytest.mark.parametrize("name", ["max_slots", "max_length", "bucket_bytes"])
def test_sizes_must_be_positive(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0"):
        VllmStrategy("folder", **{name: 0})


def test_rates_count_the_time_with_requests_only() -> None:
    counters = EngineCounters()
    assert counters.as_metrics()["tokens_per_second"] == 0
    counters.begin()
    counters.begin()
    counters.end()
    assert counters.as_metrics()["active"] == 1
    assert counters.as_metrics()["busy_seconds"] > 0
    counters.end()
    stopped = counters.as_metrics()["busy_seconds"]
    assert counters.as_metrics()["busy_seconds"] == stopped
    counters.completed(prompt_tokens=10, cached_tokens=4, aborted=True)
    assert counters.as_metrics()["prefix_cache_hit_rate"] == 0.4
    assert counters.as_metrics()["aborted"] == 1
