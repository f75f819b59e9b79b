"""Checkpoints of `megatron_train` continue exactly, also on another division of ranks, and models can be exchanged."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from megatron_support.ranks import ranks
from megatron_support.scenarios import EXPERTS, INTERLEAVED, PIPELINE, TENSOR, Case, Outcome
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from tests.rings import exhaustive_but

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None, reason="needs Megatron-Core: pip install 'roll-rl[megatron]'"
)

OVERLAP = {"overlap_grad_reduce": True, "overlap_param_gather": True, "ddp_bucket_size": 200}
PLAIN = {"use_distributed_optimizer": False}

SAME = {
    "data, overlapping": Case(megatron=OVERLAP, uneven=True),
    "tensor, dropout": Case(megatron=TENSOR, dropout=0.3),
    "pipeline, plain optimiser, tied": Case(megatron={**PIPELINE, **PLAIN}, tied=True),
    "bf16": Case(train={"mixed_precision": True}),
    "bf16, plain optimiser, critic": Case(megatron={**PIPELINE, **PLAIN}, critic=True, train={"mixed_precision": True}),
}
"""Both optimisers in both precisions, each over a division of ranks of its own."""

OTHER = {
    "tensor to data": (Case(megatron=TENSOR), {}, 2),
    "interleaved to tensor": (Case(megatron=INTERLEAVED, layers=4), TENSOR, 2),
    "tied pipeline to one process": (Case(megatron=PIPELINE, tied=True), {}, 1),
    "experts to one process": (Case(megatron=EXPERTS, family="qwen3_moe", layers=3), {}, 1),
    "plain optimiser, experts to tensor": (
        Case(megatron={**EXPERTS, **PLAIN}, family="qwen3_moe"),
        {**TENSOR, **PLAIN, "sequence_parallel": True},
        2,
    ),
    "two to four": (Case(megatron=TENSOR), {**TENSOR, **PIPELINE}, 4),
}


def assert_same(ours: Outcome, expected: Outcome, digits: float) -> None:
    assert ours.parameters.keys() == expected.parameters.keys()
    for name, value in expected.parameters.items():
        np.testing.assert_allclose(ours.parameters[name], value, rtol=digits, atol=digits, err_msg=name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SAME)
def test_four_steps_equal_two_a_checkpoint_and_two_more(name: str, tmp_path: Path) -> None:
    """In the last bit, loaded by a trainer with other weights that has taken a step of its own."""
    case = SAME[name]
    batches = [case.batch(seed) for seed in range(4)]
    straight = ranks(2).run("save_and_go_on", case, tmp_path, batches[:2], batches[2:])
    for whole, after in zip(straight, ranks(2).run("resume", case, tmp_path, batches[2:], 1), strict=True):
        assert after.steps == whole.steps[2:]
        assert_same(after, whole, 0)
        np.testing.assert_array_equal(after.outputs, whole.outputs)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["data, overlapping", "tensor, dropout"])
def test_a_checkpoint_between_steps_changes_nothing(name: str, tmp_path: Path) -> None:
    case = SAME[name]
    batches = [case.batch(seed) for seed in range(2)]
    saved = ranks(2).run("save_and_go_on", case, tmp_path, batches[:1], batches[1:])
    for ours, expected in zip(saved, ranks(2).run("train", case, batches), strict=True):
        assert ours.steps == expected.steps
        assert_same(ours, expected, 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["tensor, dropout", "bf16, plain optimiser, critic"])
def test_another_run_begins_with_its_optimiser_and_has_a_schedule_of_its_own(name: str, tmp_path: Path) -> None:
    """With the same schedule it does what the first one would have done."""
    case = replace(SAME[name], dropout=0.0, train={**SAME[name].train, "lr_scheduler_type": "constant"})
    batches = [case.batch(seed) for seed in range(5)]
    straight = ranks(2).run("save_and_go_on", case, tmp_path, batches[:3], batches[3:])
    for whole, after in zip(straight, ranks(2).run("take_over", case, tmp_path, batches[3:]), strict=True):
        assert after.steps == whole.steps[3:]
        assert_same(after, whole, 0)

    warming = {"lr_scheduler_type": "linear", "warmup_steps": 4, "learning_rate": 8e-4}
    other = replace(case, train={**case.train, **warming})
    for after in ranks(2).run("take_over", other, tmp_path, batches[3:]):
        assert [step["learning_rate"] for step in after.steps] == [0.0, 2e-4]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", exhaustive_but(OTHER, "tensor to data"))
def test_another_division_of_ranks_continues(name: str, tmp_path: Path) -> None:
    case, megatron, size = OTHER[name]
    batches = [case.batch(seed) for seed in range(4)]
    straight = ranks(2).run("save_and_go_on", case, tmp_path, batches[:2], batches[2:])[0]
    for rank in ranks(size).run("resume", replace(case, megatron=megatron), tmp_path, batches[2:], 1):
        assert_same(rank, straight, 1e-5)
        for ours, expected in zip(rank.steps, straight.steps[2:], strict=True):
            assert ours == pytest.approx(expected, rel=1e-5, abs=1e-5)
            assert ours["learning_rate"] == expected["learning_rate"]


@pytest.mark.exhaustive
def test_a_checkpoint_before_the_first_step_forgets_the_steps_of_who_loads_it(tmp_path: Path) -> None:
    case = Case(megatron=TENSOR)
    batches = [case.batch(seed) for seed in range(2)]
    ranks(2).run("train_and_save", case, [], tmp_path)
    after, straight = ranks(2).run("resume", case, tmp_path, batches, 2), ranks(2).run("train", case, batches)
    for ours, expected in zip(after, straight, strict=True):
        assert ours.steps == expected.steps
        assert_same(ours, expected, 0)


@pytest.mark.parametrize(
    "case",
    [
        Case(megatron={**TENSOR, "sequence_parallel": True}),
        pytest.param(Case(megatron=PIPELINE, tied=True, family="qwen2"), marks=pytest.mark.exhaustive),
        pytest.param(Case(megatron=TENSOR, family="llama"), marks=pytest.mark.exhaustive),
        pytest.param(Case(megatron=EXPERTS, family="qwen3_moe", layers=3), marks=pytest.mark.exhaustive),
        pytest.param(Case(megatron=PIPELINE, critic=True), marks=pytest.mark.exhaustive),
    ],
    ids=lambda case: "critic" if case.critic else case.family,
)
def test_models_go_to_transformers_and_back_unchanged(case: Case, tmp_path: Path) -> None:
    everyone = ranks(2).run("train_and_save", case, [case.batch(0)], tmp_path)
    written = everyone[0]
    kind = AutoModelForTokenClassification if case.critic else AutoModelForCausalLM
    loaded, report = kind.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert loaded.dtype == torch.float32 and not report["missing_keys"] and not report["unexpected_keys"]
    parameters = dict(loaded.named_parameters())
    assert parameters.keys() == written.parameters.keys()
    for name, value in written.parameters.items():
        np.testing.assert_array_equal(parameters[name].detach().numpy(), value, err_msg=name)
    for rank, before in zip(ranks(2).run("resume_from_folder", case, tmp_path / "hf", []), everyone, strict=True):
        assert_same(rank, before, 0)
        np.testing.assert_array_equal(rank.outputs, before.outputs)
