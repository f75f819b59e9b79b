"""LoRA with `megatron_train`, over one, two and four ranks on the CPU, equals `fsdp_train` in one process."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from megatron_support.lora_runs import LoraOutcome, train_as_configured, train_fsdp
from megatron_support.ranks import ranks
from megatron_support.scenarios import (
    CONTEXT,
    EXPERTS,
    INTERLEAVED,
    LIMIT,
    PIPELINE,
    SEQUENCE,
    TENSOR,
    Case,
    plain_outputs,
)
from peft import PeftModel
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from roll.config import AgenticConfig
from roll.pipelines.checks.common import strategy_problems
from tests.rings import exhaustive_but

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None, reason="needs Megatron-Core: pip install 'roll-rl[megatron]'"
)

ALL = {"rank": 3, "alpha": 5.0, "seed": 8}
OVERLAP = {"overlap_grad_reduce": True, "overlap_param_gather": True, "ddp_bucket_size": 200}
PLAIN = {"use_distributed_optimizer": False}
PACKED = {"use_sequence_packing": True}
MOE = "qwen3_moe"

TWO = {
    "data, overlapping": Case(lora=ALL, megatron=OVERLAP, uneven=True),
    "tensor, plain optimiser, l2, recomputing": Case(
        lora=ALL, megatron={**TENSOR, **PLAIN}, train={"l2": 0.05, "gradient_checkpointing": True}
    ),
    "tensor, qwen2": Case(lora=ALL, megatron=TENSOR, family="qwen2", tied=True),
    "sequence": Case(lora=ALL, megatron=SEQUENCE, train={"l2": 0.05}),
    "sequence, packed, other layers": Case(
        lora={**ALL, "target": ["o_proj", "up_proj", "v_proj"]}, megatron=SEQUENCE, train=PACKED
    ),
    "pipeline": Case(lora=ALL, megatron={**PIPELINE, "recompute_granularity": "full"}, tied=True),
    "pipeline, plain optimiser, critic": Case(lora=ALL, megatron={**PIPELINE, **PLAIN}, critic=True),
    "interleaved, overlapping": Case(lora=ALL, megatron={**INTERLEAVED, **OVERLAP}, layers=4),
    "context": Case(lora=ALL, megatron=CONTEXT, train={"max_samples_per_microbatch": 2}),
    "experts": Case(lora=ALL, megatron=EXPERTS, family=MOE, layers=3, uneven=True),
}

FOUR = {
    "tensor x pipeline": Case(lora=ALL, megatron={**SEQUENCE, **PIPELINE}),
}


def three_batches(case: Case) -> list:
    return [case.batch(seed) for seed in range(3)]


Alone = Callable[[Case], tuple[LoraOutcome, Path]]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """Train a case with `fsdp_train` in this process, each model once, and say where its files are."""
    known: dict[str, tuple[LoraOutcome, Path]] = {}

    def train(case: Case) -> tuple[LoraOutcome, Path]:
        kept = {key: case.train[key] for key in ("l2",) if key in case.train}
        plain = replace(case, megatron={}, train=kept, uneven=False)
        if str(plain) not in known:
            folder = tmp_path_factory.mktemp("fsdp")
            known[str(plain)] = train_fsdp(plain, three_batches(case), folder), folder
        return known[str(plain)]

    return train


def assert_equal_runs(found: list[LoraOutcome], expected: LoraOutcome, digits: float = 1e-5) -> None:
    for rank in found:
        assert rank.steps == found[0].steps, "every rank reports the same"
        for ours, theirs in zip(rank.steps, expected.steps, strict=True):
            assert ours == pytest.approx(theirs, rel=digits, abs=digits)
        assert rank.parameters.keys() == expected.parameters.keys()
        for name, value in expected.parameters.items():
            np.testing.assert_allclose(rank.parameters[name], value, rtol=digits, atol=digits, err_msg=name)
        np.testing.assert_allclose(rank.outputs, expected.outputs[rank.rows], rtol=digits, atol=digits)
        np.testing.assert_allclose(rank.reference, expected.reference[rank.rows], rtol=digits, atol=digits)


def assert_equal_adapters(found: Path, expected: Path) -> None:
    ours, theirs = (load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (found, expected))
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", exhaustive_but([*TWO, *FOUR], "sequence"))
def test_three_steps_equal_fsdp_in_one_process(alone: Alone, name: str, tmp_path: Path) -> None:
    """Metrics, merged weights, outputs, adapters, and what the base model says."""
    case = TWO.get(name) or FOUR[name]
    expected, folder = alone(case)
    assert all(step["grad_norm"] > LIMIT for step in expected.steps), "clipping is active"
    found = ranks(2 if name in TWO else 4).run("train_lora", case, three_batches(case), tmp_path)
    assert_equal_runs(found, expected)
    assert_equal_adapters(tmp_path, folder)
    with torch.no_grad():
        base, _ = plain_outputs(case.model().eval(), case.batch(77))
    for rank in found:
        # A critic keeps its value head.
        if not case.critic:
            np.testing.assert_allclose(rank.reference, base[rank.rows].numpy(), rtol=1e-5, atol=1e-5)
        assert np.abs(rank.outputs - rank.reference).max() > 0.1


@pytest.mark.parametrize("start", exhaustive_but(["folder", "adapted", "normed"], "folder"))
def test_folders_adapted_models_and_norms_inside_layers_give_the_same(alone: Alone, start: str, tmp_path: Path) -> None:
    case = Case(lora=ALL, megatron=SEQUENCE)
    if start == "folder":
        case.model().save_pretrained(tmp_path / "base")
    where = tmp_path / "base" if start == "folder" else start
    found = ranks(2).run("train_lora_from", case, three_batches(case), where, tmp_path)
    assert_equal_runs(found, alone(case)[0])
    if start == "folder":
        settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
        assert settings["base_model_name_or_path"] == str(where)


@pytest.mark.exhaustive
def test_asking_the_base_model_between_steps_changes_nothing(alone: Alone) -> None:
    case = Case(lora=ALL, megatron=OVERLAP)
    assert_equal_runs(ranks(2).run("train_lora_with_breaks", case, three_batches(case)), alone(case)[0])


@pytest.mark.parametrize(
    "case",
    [
        Case(lora=ALL, critic=True),
        Case(lora=ALL, megatron={**SEQUENCE, **PLAIN}, train={"mixed_precision": True}),
        Case(lora=ALL, megatron={**PIPELINE, **OVERLAP}, critic=True),
    ],
    ids=["data, critic", "sequence, bf16", "pipeline, critic"],
)
def test_only_adapters_and_value_heads_have_gradients_and_moments(case: Case) -> None:
    found = ranks(2).run("what_is_trained", case, case.batch(0))
    for rank in found:
        assert all(".lora_" in name or name.startswith("output_layer.") for name in rank["trained"])
        assert rank["in buffers"] == rank["numbers"] and rank["gradients of frozen"] == 0
        assert rank["dtypes"] == ["torch.float32"]
    copies = 1 if case.megatron else 2
    assert sum(rank["moments"] for rank in found) == sum(rank["numbers"] for rank in found) // copies
    every = {name for rank in found for name in rank["trained"]} if copies == 2 else found[0]["trained"]
    layers = 1 if "pipeline_model_parallel_size" in case.megatron else 2
    assert sum(".lora_" in name for name in every) == 2 * 7 * layers


def test_experts_get_no_adapters(alone: Alone) -> None:
    case = Case(lora=ALL, megatron=EXPERTS, family=MOE, layers=3, uneven=True)
    names = load_file(alone(case)[1] / "adapter" / "adapter_model.safetensors")
    assert {name.split(".")[-3] for name in names} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    for rank in ranks(2).run("what_is_trained", case, case.batch(0)):
        assert len(rank["trained"]) == 2 * 4 * 3 and all("self_attention" in name for name in rank["trained"])


@pytest.mark.exhaustive
def test_bf16_comes_near(alone: Alone) -> None:
    case = Case(lora=ALL, megatron=SEQUENCE, train={"mixed_precision": True})
    expected, _ = alone(case)
    for rank in ranks(2).run("train_lora", case, three_batches(case)):
        for ours, theirs in zip(rank.steps, expected.steps, strict=True):
            assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.1, abs=0.02)
            assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=0.1)


@pytest.mark.parametrize(
    ("critic", "megatron"), [(False, SEQUENCE), pytest.param(True, PIPELINE, marks=pytest.mark.exhaustive)]
)
def test_peft_reads_the_adapters_and_transformers_the_merged_model(
    critic: bool, megatron: dict, tmp_path: Path
) -> None:
    case = Case(lora=ALL, megatron=megatron, critic=critic)
    case.model().save_pretrained(tmp_path / "base")
    written = ranks(2).run("train_lora", case, three_batches(case), tmp_path)[0]
    kind = AutoModelForTokenClassification if critic else AutoModelForCausalLM
    merged, report = kind.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    adapted = PeftModel.from_pretrained(kind.from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    adapted = adapted.merge_and_unload()
    for name, value in written.parameters.items():
        np.testing.assert_array_equal(merged.get_parameter(name).detach().numpy(), value, err_msg=name)
        np.testing.assert_allclose(adapted.get_parameter(name).detach().numpy(), value, atol=1e-6, err_msg=name)
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) == (ALL["rank"], ALL["alpha"])
    assert settings["task_type"] == ("TOKEN_CLS" if critic else "CAUSAL_LM") and not settings["inference_mode"]


SAME = {
    "data, overlapping, dropout": Case(lora=ALL, megatron=OVERLAP, uneven=True, dropout=0.3),
    "sequence, critic": Case(lora=ALL, megatron=SEQUENCE, critic=True),
    "pipeline, plain optimiser, bf16": Case(lora=ALL, megatron={**PIPELINE, **PLAIN}, train={"mixed_precision": True}),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", exhaustive_but(SAME, "data, overlapping, dropout"))
def test_four_steps_equal_two_a_checkpoint_and_two_more(name: str, tmp_path: Path) -> None:
    """In the last bit, loaded by a trainer with other weights and adapters that has taken a step of its own."""
    case = SAME[name]
    batches = [case.batch(seed) for seed in range(4)]
    straight = ranks(2).run("save_and_go_on", case, tmp_path, batches[:2], batches[2:])
    other = replace(case, lora={**ALL, "seed": 9})
    for whole, after in zip(straight, ranks(2).run("resume", other, tmp_path, batches[2:], 1), strict=True):
        assert after.steps == whole.steps[2:]
        for parameter, value in whole.parameters.items():
            np.testing.assert_array_equal(after.parameters[parameter], value, err_msg=parameter)
        np.testing.assert_array_equal(after.outputs, whole.outputs)


@pytest.mark.exhaustive
def test_another_division_of_ranks_continues(tmp_path: Path) -> None:
    case = Case(lora=ALL, megatron=OVERLAP)
    batches = [case.batch(seed) for seed in range(4)]
    straight = ranks(2).run("save_and_go_on", case, tmp_path, batches[:2], batches[2:])[0]
    other = replace(case, megatron={**SEQUENCE, **PIPELINE}, lora={**ALL, "seed": 9})
    for rank in ranks(4).run("resume", other, tmp_path, batches[2:], 1):
        for name, value in straight.parameters.items():
            np.testing.assert_allclose(rank.parameters[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.exhaustive
def test_the_keys_of_a_role_give_both_strategies_the_same_adapters(tmp_path: Path) -> None:
    case = Case(megatron=TENSOR)
    case.model().save_pretrained(tmp_path)
    adapters = {"lora_rank": 4, "lora_alpha": 6, "lora_target": ["v_proj", "gate_proj", "o_proj"], "dtype": "fp32"}
    settings = {"pretrain": str(tmp_path), "seed": 5, "actor_train": {"model_args": adapters}}
    settings["actor_train"]["training_args"] = {"learning_rate": 1e-2, "adam_epsilon": 1e-4}
    expected = train_as_configured(settings, replace(case, megatron={}), three_batches(case))
    settings["actor_train"]["strategy_args"] = {"strategy_name": "megatron_train", "strategy_config": TENSOR}
    assert_equal_runs(ranks(2).run("factory_lora", settings, case, three_batches(case)), expected)
    start = dict(case.model().named_parameters())
    moved = {name for name, value in expected.parameters.items() if np.abs(value - start[name].detach().numpy()).max()}
    assert {name.split(".")[-2] for name in moved} == set(adapters["lora_target"])
    assert list(strategy_problems(AgenticConfig(cluster="ray", **settings))) == []


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    said = ranks(2).run("lora_refusals", Case(lora=ALL), tmp_path)[0]
    assert "HiddenNormLinear has a norm inside" in said["hidden norm"] and "fsdp_train" in said["hidden norm"]
    assert said["no adapters"].endswith("has no LoRA adapters here. Set model_args.lora_rank, or use save_hf.")
    assert "q_proj has a LoRA adapter with dropout" in said["dropout"]
    assert "Qwen3ForCausalLM has LoRA adapters already" in said["twice"]
