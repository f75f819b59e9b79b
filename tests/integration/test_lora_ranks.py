"""LoRA adapters over several ranks equal those of one process; memory that is handed over comes back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fsdp_scenarios import Case, park_between_steps, reference_first, resume, score, train
from peft import PeftModel
from rank_pool import RankPool
from test_fsdp_checkpoints import assert_same
from test_fsdp_ranks import EXACT, assert_equal_runs
from transformers import AutoModelForCausalLM

from tests.rings import exhaustive_but

CASES = {
    "plain": Case(lora=3),
    "fp32": Case(lora=3, double=False),
    "critic": Case(lora=3, critic=True, shares=(5, 3)),
    "demonstrations": Case(lora=3, imitates=True, shares=(5, 3), train={"use_sequence_packing": True}),
    "offloaded from rank 0": Case(lora=3, fsdp={"offload_params": True, "meta_init": True}),
    "parts of sequences": Case(lora=3, shares=(8,), fsdp={"ulysses_size": 2}, train={"use_sequence_packing": True}),
    "recomputing": Case(lora=3, fsdp={"fsdp_size": 1}, train={"gradient_checkpointing": True}),
}


@pytest.mark.parametrize("name", exhaustive_but(CASES, "plain"))
def test_three_steps_on_two_ranks_equal_one_process(two: RankPool, name: str) -> None:
    case = CASES[name]
    batches = [case.batch(seed) for seed in range(3)]
    expected = train(replace(case, fsdp={}, train={}), batches)
    assert expected.steps[0]["grad_norm"] > 0.1, "clipping is active"
    assert_equal_runs(case, expected, two.run(train, case, batches), EXACT if case.double else 1e-5)


def test_the_reference_may_be_asked_before_the_first_step(two: RankPool) -> None:
    case = Case(lora=3, shares=(5, 3))
    batches = [case.batch(seed) for seed in range(2)]
    results = two.run(reference_first, case, batches)
    expected = score(replace(case, lora=None), batches[0])
    np.testing.assert_allclose(np.concatenate([first for first, _ in results]), expected, rtol=1e-6, atol=1e-6)
    assert_equal_runs(case, train(replace(case, fsdp={}), batches), [after for _, after in results], EXACT)


@pytest.mark.exhaustive
def test_checkpoints_and_adapters_of_two_ranks_continue_and_load_elsewhere(two: RankPool, tmp_path: Path) -> None:
    case = Case(lora=3, shares=(5, 3))
    batches = [case.batch(seed) for seed in range(4)]
    straight = two.run(train, case, batches)
    half = two.run(train, case, batches[:2], tmp_path)
    for rank, whole in zip(two.run(resume, case, tmp_path, batches[2:], 1), straight, strict=True):
        assert_same(rank, whole, 0)
    assert_same(resume(case, tmp_path, batches[2:], 1), straight[0], EXACT)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float64)
    adapted = PeftModel.from_pretrained(case.model(), tmp_path / "adapters").merge_and_unload()
    for name, value in half[0].parameters.items():
        np.testing.assert_array_equal(merged.get_parameter(name).detach().numpy(), value, err_msg=name)
        np.testing.assert_allclose(adapted.get_parameter(name).detach().numpy(), value, atol=1e-15, err_msg=name)


@pytest.mark.parametrize("fsdp", exhaustive_but([{}, {"fsdp_size": 1}, {"reshard_after_forward": False}], {}))
def test_memory_that_was_given_back_holds_the_same_again(two: RankPool, fsdp: dict) -> None:
    case = Case(shares=(5, 3), fsdp=fsdp)
    batches = [case.batch(seed) for seed in range(3)]
    expected = two.run(train, case, batches)
    for (left, ours), plain in zip(two.run(park_between_steps, case, batches), expected, strict=True):
        assert left == [0, 0, 0]
        assert ours.steps == plain.steps
        assert_same(ours, plain, 0)
