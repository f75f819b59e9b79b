"""What becomes of strategies and their widths on a machine without a GPU."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from roll.config import RLVRConfig
from roll.config.loading import load
from roll.rehearsal.changes import Folding
from roll.rehearsal.folding import fold
from roll.rehearsal.stand_in import StandIn

MODEL = StandIn(Path("model"), "qwen2", "A random model.", own_tokenizer=True)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One without a GPU, with every package."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("roll.config.strategies.find_spec", lambda name: importlib.util.find_spec("json"))


def job(role: str, strategy: str, devices: int, section: Mapping[str, Any] | None = None, **options: Any) -> RLVRConfig:
    keys = {
        "cluster": "ray",
        "pretrain": "toy_math",
        "num_return_sequences_in_group": 8,
        "rewards": {"math_rule": {"verifiers": {"math": 1.0}}},
        "actor_train.data_args.file_name": ["rows.jsonl"],
        f"{role}.device_mapping": f"list(range(0,{devices}))",
        f"{role}.strategy_args": {"strategy_name": strategy, "strategy_config": options},
        **{f"{role}.{key}": value for key, value in (section or {}).items()},
    }
    return load({}, kind=RLVRConfig, overrides=keys)


def said(folding: Folding, words: str) -> bool:
    return any(words in note for note in folding.notes)


TENSOR, PIPELINE = "tensor_model_parallel_size", "pipeline_model_parallel_size"
EXPERTS, CONTEXT = "expert_model_parallel_size", "context_parallel_size"


@pytest.mark.parametrize(
    ("given", "here", "words"),
    [
        (
            {TENSOR: 8, PIPELINE: 4, "sequence_parallel": True},
            {TENSOR: 2, PIPELINE: 1, "sequence_parallel": True},
            f"{TENSOR} 8 became 2, {PIPELINE} 4 became 1.",
        ),
        ({PIPELINE: 4}, {PIPELINE: 2}, f"{PIPELINE} 4 became 2."),
        ({CONTEXT: 2, TENSOR: 1}, {CONTEXT: 2, TENSOR: 1}, f"{CONTEXT} 2 stays."),
        (
            {PIPELINE: 2, EXPERTS: 8, "virtual_pipeline_model_parallel_size": 2},
            {PIPELINE: 2, EXPERTS: 1},
            "without virtual_pipeline_model_parallel_size, for the random model has two layers.",
        ),
        (
            {EXPERTS: 8, "expert_tensor_parallel_size": 1, "moe_grouped_gemm": True},
            {EXPERTS: 2, "expert_tensor_parallel_size": 1},
            "without CUDA's kernels (moe_grouped_gemm).",
        ),
    ],
)
def test_two_ranks_of_megatron_share_the_first_width_above_one_and_the_others_end(
    given: dict[str, Any], here: dict[str, Any], words: str
) -> None:
    folding = fold(job("actor_train", "megatron_train", 64, **given), MODEL, ray=True)
    assert folding.changes["actor_train.strategy_args.strategy_config"] == here
    assert folding.changes["actor_train.strategy_args.strategy_name"] == "megatron_train"
    assert folding.changes["actor_train.world_size"] == 2
    assert said(folding, words), folding.notes


def test_one_process_has_no_width_and_no_sequence_parallelism() -> None:
    given = {TENSOR: 8, EXPERTS: 2, "expert_tensor_parallel_size": 4, "sequence_parallel": True}
    folding = fold(job("actor_train", "megatron_train", 8, **given), MODEL, ray=False)
    here = {TENSOR: 1, EXPERTS: 1, "expert_tensor_parallel_size": 1, "sequence_parallel": False}
    assert folding.changes["actor_train.strategy_args.strategy_config"] == here
    assert folding.changes["actor_train.world_size"] == 1
    assert said(folding, "sequence_parallel true became false")


def test_sequences_are_spread_over_two_ranks_of_fsdp() -> None:
    folding = fold(job("actor_train", "fsdp_train", 8, ulysses_size=4), MODEL, ray=True)
    assert folding.changes["actor_train.strategy_args.strategy_config"] == {"ulysses_size": 2}
    assert said(folding, "ulysses_size 4 became 2.")


@pytest.mark.parametrize("options", [{"tensor_parallel_size": 4}, {}], ids=["said", "by devices"])
def test_a_divided_engine_is_one_worker_whose_model_two_processes_share(options: dict[str, Any]) -> None:
    folding = fold(job("actor_infer", "vllm", 8, {"num_gpus_per_worker": 4}, **options), MODEL, ray=True)
    assert folding.changes["actor_infer.strategy_args.strategy_config"] == {"tensor_parallel_size": 2}
    assert folding.changes["actor_infer.world_size"] == 1


def test_fsdp_train_stands_in_where_megatron_core_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> ModuleSpec | None:
        # As it is where its parent is not there either.
        if name.startswith("megatron"):
            raise ModuleNotFoundError(name)
        return importlib.util.find_spec(name)

    monkeypatch.setattr("roll.config.strategies.find_spec", find)
    folding = fold(job("actor_train", "megatron_train", 8, **{TENSOR: 2}), MODEL, ray=True)
    assert folding.changes["actor_train.strategy_args.strategy_name"] == "fsdp_train"
    assert folding.changes["actor_train.strategy_args.strategy_config"] is None
    assert "actor_train.worker_cls" not in folding.changes
    assert said(folding, "megatron_train is not installed here, so fsdp_train stands in for it.")


def test_a_worker_class_of_the_job_keeps_its_place_and_not_megatron() -> None:
    folding = fold(job("actor_train", "megatron_train", 8, {"worker_cls": "mine.Worker"}), MODEL, ray=True)
    assert "actor_train.worker_cls" not in folding.changes
    assert said(folding, "megatron_train needs a GPU, so fsdp_train stands in for it.")


def test_sglang_without_kernels_for_this_machine_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sgl_kernel", None)
    folding = fold(job("actor_infer", "sglang", 8, tp_size=8), MODEL, ray=True)
    assert folding.changes["actor_infer.strategy_args.strategy_name"] == "hf_infer"
    assert said(folding, "sglang has no kernels for the CPU here (sgl_kernel), so hf_infer stands in for it.")
