"""Checkpoints of `fsdp_train` continue exactly, on as many ranks or on another number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from fsdp_scenarios import Case, Outcome, resume, train
from rank_pool import RankPool
from test_fsdp_ranks import EXACT
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from roll.strategies.training.pytorch.checkpoint import CHECKPOINT_FILE, CHECKPOINT_FOLDER
from tests.rings import exhaustive_but


def assert_same(ours: Outcome, expected: Outcome, digits: float) -> None:
    for name, value in expected.parameters.items():
        np.testing.assert_allclose(ours.parameters[name], value, rtol=digits, atol=digits, err_msg=name)


@pytest.mark.parametrize("fsdp", exhaustive_but([{}, {"offload_params": True}], {}))
def test_six_steps_equal_three_a_checkpoint_and_three_more(two: RankPool, fsdp: dict, tmp_path: Path) -> None:
    """With dropout, so that the random state counts, and in the last bit."""
    case = Case(shares=(5, 3), dropout=0.3, fsdp=fsdp)
    batches = [case.batch(seed) for seed in range(6)]
    straight = two.run(train, case, batches)
    first = two.run(train, case, batches[:3], tmp_path / "step")
    second = two.run(resume, case, tmp_path / "step", batches[3:])
    for whole, before, after in zip(straight, first, second, strict=True):
        assert before.steps + after.steps == whole.steps
        assert_same(after, whole, 0)


@pytest.mark.exhaustive
def test_a_checkpoint_before_the_first_step_forgets_the_steps_of_who_loads_it(two: RankPool, tmp_path: Path) -> None:
    case = Case()
    batches = [case.batch(seed) for seed in range(2)]
    two.run(train, case, [], tmp_path)
    for ours, expected in zip(two.run(resume, case, tmp_path, batches, 2), two.run(train, case, batches), strict=True):
        assert ours.steps == expected.steps
        assert_same(ours, expected, 0)


@pytest.mark.exhaustive
def test_any_number_of_ranks_continues_what_another_number_wrote(two: RankPool, four: RankPool, tmp_path: Path) -> None:
    case = Case(shares=(5, 3))
    quarter = Case(shares=(2, 2, 2, 2), fsdp={"fsdp_size": 2})
    batches = [case.batch(seed) for seed in range(4)]
    expected = train(case, batches)
    train(case, batches[:2], tmp_path / "alone")
    two.run(train, case, batches[:2], tmp_path / "two")
    assert (tmp_path / "alone" / CHECKPOINT_FILE).is_file() and (tmp_path / "two" / CHECKPOINT_FOLDER).is_dir()
    assert_same(resume(case, tmp_path / "two", batches[2:], 1), expected, EXACT)
    for folder in ("alone", "two"):
        for pool, split in ((two, case), (four, quarter)):
            for rank in pool.run(resume, split, tmp_path / folder, batches[2:], 1):
                assert_same(rank, expected, EXACT)
                assert rank.steps[-1]["learning_rate"] == expected.steps[-1]["learning_rate"]


@pytest.mark.parametrize(
    "case", exhaustive_but([Case(), Case(tied=False), Case(critic=True, double=False)], Case()), ids=str
)
def test_the_saved_model_loads_with_transformers(two: RankPool, case: Case, tmp_path: Path) -> None:
    ranks = two.run(train, case, [case.batch(0)], tmp_path)
    kind = AutoModelForTokenClassification if case.critic else AutoModelForCausalLM
    loaded, report = kind.from_pretrained(
        tmp_path / "hf", dtype=torch.float64 if case.double else torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    parameters = dict(loaded.named_parameters())
    assert parameters.keys() == ranks[0].parameters.keys()
    for name, value in ranks[0].parameters.items():
        np.testing.assert_array_equal(parameters[name].detach().numpy(), value, err_msg=name)
