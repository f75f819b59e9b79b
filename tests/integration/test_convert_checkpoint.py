"""Training checkpoints become Hugging Face folders in one process."""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fsdp_scenarios import Case, train
from rank_pool import RankPool
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from roll.models.convert import ConversionError, convert_checkpoint
from roll.strategies.training.pytorch.checkpoint import MODEL_FOLDER
from tests.rings import exhaustive_but

SCRIPT = Path(__file__).parents[2] / "examples" / "convert_checkpoint.py"


@pytest.mark.parametrize("ranks", exhaustive_but([1, 2], 2))
@pytest.mark.parametrize(
    "case",
    [Case(shares=(5, 3)), Case(shares=(5, 3), lora=3, tied=False), Case(shares=(5, 3), critic=True)],
    ids=["tied", "lora", "critic"],
)
def test_the_folder_holds_the_weights_of_the_trainer(two: RankPool, case: Case, ranks: int, tmp_path: Path) -> None:
    batch = [case.batch(0)]
    checkpoint = tmp_path / "step"
    if ranks == 1:
        expected = train(case, batch, checkpoint).parameters
    else:
        expected = two.run(train, case, batch, checkpoint)[0].parameters
    convert_checkpoint(checkpoint, tmp_path / "out")
    kind = AutoModelForTokenClassification if case.critic else AutoModelForCausalLM
    loaded, report = kind.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    parameters = dict(loaded.named_parameters())
    assert parameters.keys() == expected.keys()
    for name, value in expected.items():
        assert parameters[name].dtype == torch.float64
        # The same sum of two products, by another library.
        np.testing.assert_allclose(parameters[name].detach().numpy(), value, rtol=0, atol=1e-14, err_msg=name)


def test_another_precision_and_a_configuration_from_elsewhere(tmp_path: Path) -> None:
    case = Case()
    train(case, [case.batch(0)], tmp_path / "step")
    shutil.move(tmp_path / "step" / MODEL_FOLDER, tmp_path / "elsewhere")
    with pytest.raises(ConversionError, match=r"no config\.json.*--config"):
        convert_checkpoint(tmp_path / "step", tmp_path / "out")
    convert_checkpoint(tmp_path / "step", tmp_path / "out", config=tmp_path / "elsewhere", dtype="bf16")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == torch.bfloat16
    with pytest.raises(ConversionError, match="out holds something already"):
        convert_checkpoint(tmp_path / "step", tmp_path / "out", config=tmp_path / "elsewhere")


def test_a_model_of_another_shape_is_refused(tmp_path: Path) -> None:
    case = Case(tied=False)
    train(case, [], tmp_path / "step")
    train(Case(critic=True), [], tmp_path / "other")
    with pytest.raises(ConversionError, match=r"do not fit Qwen3ForTokenClassification.*lm_head\.weight"):
        convert_checkpoint(tmp_path / "step", tmp_path / "out", config=tmp_path / "other" / MODEL_FOLDER)


def test_the_program_says_what_is_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path), str(tmp_path / "out")])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    message = str(caught.value.code)
    assert message.startswith(f"{tmp_path} is no checkpoint of fsdp_train") and "step=000020" in message


def test_the_program_converts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(Case(), [], tmp_path / "step")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path / "step"), str(tmp_path / "out"), "--dtype", "fp32"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert (tmp_path / "out" / "model.safetensors").is_file() and (tmp_path / "out" / "config.json").is_file()
