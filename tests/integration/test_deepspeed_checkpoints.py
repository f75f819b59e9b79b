"""Checkpoints of `deepspeed_train` continue exactly; saved models load with transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from deepspeed_support import ZeroCase, loading_error, preset, resume, save_and_go_on, take_over, train
from rank_pool import RankPool
from test_deepspeed_ranks import SETTINGS, zero
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from tests.rings import exhaustive_but


@pytest.mark.parametrize("setting", exhaustive_but(SETTINGS, "zero 2"))
def test_a_resumed_run_equals_one_that_never_stopped(two: RankPool, setting: str, tmp_path: Path) -> None:
    """With dropout, so that the random state counts, and in the last bit."""
    case = ZeroCase(shares=(5, 3), dropout=0.3, config=SETTINGS[setting])
    batches = [case.batch(seed) for seed in range(5)]
    straight = two.run(save_and_go_on, case, tmp_path, batches)
    resumed = two.run(resume, case, tmp_path, batches[3:])
    for whole, after in zip(straight, resumed, strict=True):
        assert after.steps == whole.steps
        np.testing.assert_array_equal(after.outputs, whole.outputs)
        for name, value in whole.parameters.items():
            np.testing.assert_array_equal(after.parameters[name], value, err_msg=name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("setting", ["zero 1", "zero 3 offload"])
def test_another_run_begins_with_its_optimiser_and_has_a_schedule_of_its_own(
    two: RankPool, setting: str, tmp_path: Path
) -> None:
    """With the same schedule it does what the first one would have done."""
    case = ZeroCase(shares=(5, 3), config=SETTINGS[setting], train={"lr_scheduler_type": "constant"})
    batches = [case.batch(seed) for seed in range(5)]
    straight = two.run(save_and_go_on, case, tmp_path, batches)
    for whole, after in zip(straight, two.run(take_over, case, tmp_path, batches[3:]), strict=True):
        assert after.steps == whole.steps
        for name, value in whole.parameters.items():
            np.testing.assert_array_equal(after.parameters[name], value, err_msg=name)

    warming = {"lr_scheduler_type": "linear", "warmup_steps": 4, "learning_rate": 8e-4}
    for after in two.run(take_over, replace(case, train=warming), tmp_path, batches[3:]):
        assert [step["learning_rate"] for step in after.steps] == [0.0, 2e-4]


@pytest.mark.exhaustive
def test_a_checkpoint_is_refused_by_another_stage_another_number_of_ranks_and_where_there_is_none(
    two: RankPool, four: RankPool, tmp_path: Path
) -> None:
    case = ZeroCase(config=zero(2))
    two.run(train, case, [case.batch(0)], tmp_path)
    for message in two.run(loading_error, ZeroCase(config=zero(3)), tmp_path):
        assert "zero_optimization.stage 2 and this run has 3" in message
    for message in four.run(loading_error, case, tmp_path):
        assert "was written by 2 ranks and this run has 4" in message
    for message in two.run(loading_error, case, tmp_path / "nowhere"):
        assert "is not a checkpoint of deepspeed_train" in message


@pytest.mark.parametrize(
    ("name", "critic"),
    [
        pytest.param("deepspeed_zero2", False, marks=pytest.mark.exhaustive),
        ("deepspeed_zero3", False),
        pytest.param("deepspeed_zero3", True, marks=pytest.mark.exhaustive),
    ],
)
def test_the_saved_model_loads_with_transformers(two: RankPool, name: str, critic: bool, tmp_path: Path) -> None:
    case = ZeroCase(critic=critic, config=preset(name))
    ranks = two.run(train, case, [case.batch(0)], tmp_path)
    kind = AutoModelForTokenClassification if critic else AutoModelForCausalLM
    loaded, report = kind.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    parameters = dict(loaded.named_parameters())
    assert parameters.keys() == ranks[0].parameters.keys()
    for name, value in ranks[0].parameters.items():
        np.testing.assert_array_equal(parameters[name].detach().numpy(), value, err_msg=name)
