"""Models in Megatron-Core's own format: those that it wrote itself are loaded, and what is written it can load."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from megatron_support.ranks import ranks
from megatron_support.scenarios import EXPERTS, PIPELINE, TENSOR, VOCABULARY, Case

from tests.rings import exhaustive_but

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None, reason="needs Megatron-Core: pip install 'roll-rl[megatron]'"
)

EVERY = {
    "tensor to one process": (Case(megatron=TENSOR), {}, 1),
    "one process to tensor": (Case(), TENSOR, 2),
    "tied pipeline to data": (Case(megatron=PIPELINE, tied=True), {}, 2),
    "experts to one process": (Case(megatron=EXPERTS, family="qwen3_moe", layers=3), {}, 1),
    "critic": (Case(megatron=TENSOR, critic=True), TENSOR, 2),
    "bf16": (Case(megatron=TENSOR, train={"mixed_precision": True}), {}, 2),
}


@pytest.mark.parametrize("name", exhaustive_but(EVERY, "tensor to one process"))
def test_a_model_that_is_written_begins_another_run_unchanged(name: str, tmp_path: Path) -> None:
    """On another division of ranks, into a model with other weights; from the folder of all checkpoints."""
    case, division, size = EVERY[name]
    written = ranks(2).run("save_megatron", case, tmp_path, 12)[0]
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "12"
    assert {"metadata.json", "common.pt"} <= {file.name for file in (tmp_path / "iter_0000012").iterdir()}
    for rank in ranks(size).run("begin_with_megatron", replace(case, megatron=division), tmp_path):
        assert rank.parameters.keys() == written.parameters.keys()
        for parameter, value in written.parameters.items():
            np.testing.assert_array_equal(rank.parameters[parameter], value, err_msg=parameter)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.exhaustive)])
def test_a_checkpoint_that_megatron_core_wrote_is_loaded_as_it_is(dtype: torch.dtype, tmp_path: Path) -> None:
    """Its vocabulary is padded as Megatron-LM pads it, and its norms are not those of the layers here."""
    case = Case()
    (written,) = ranks(1).run("write_as_megatron", case, tmp_path, 256, dtype)
    (loaded,) = ranks(1).run("stage_parameters", case, tmp_path)
    assert loaded.keys() == written.keys()
    for name, value in written.items():
        shown = value[:VOCABULARY] if value.shape[0] == 256 else value
        np.testing.assert_array_equal(loaded[name][: shown.shape[0]], shown, err_msg=name)
    (whole,) = ranks(1).run("begin_with_megatron", case, tmp_path)
    for rank in ranks(2).run("begin_with_megatron", replace(case, megatron=TENSOR), tmp_path):
        for name, value in whole.parameters.items():
            np.testing.assert_array_equal(rank.parameters[name], value, err_msg=name)


def test_a_critic_takes_the_layers_of_a_policy_and_keeps_its_head(tmp_path: Path) -> None:
    (written,) = ranks(1).run("write_as_megatron", Case(), tmp_path, VOCABULARY, torch.float32)
    (loaded,) = ranks(1).run("stage_parameters", Case(critic=True), tmp_path)
    name = "decoder.layers.1.mlp.linear_fc1.weight"
    np.testing.assert_array_equal(loaded[name], written[name])
    assert loaded["output_layer.weight"].shape == (1, 16)
    assert not loaded["output_layer.weight"].any()


def test_what_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    def said(case: Case, folder: Path) -> str:
        (message,) = ranks(1).run("load_error", case, folder)
        return str(message)

    assert "is no checkpoint of Megatron-Core: it has neither metadata.json nor latest" in said(Case(), tmp_path)
    (tmp_path / "release" / "mp_rank_00").mkdir(parents=True)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("release\n")
    assert "release, which latest_checkpointed_iteration.txt names, has no metadata.json" in said(Case(), tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    ranks(1).run("write_as_megatron", Case(layers=3), other, VOCABULARY, torch.float32)
    found = said(Case(), other)
    assert "is not of this model" in found and "is (3, " in found and "that of the model (2, " in found
    ranks(1).run("save_megatron", Case(tied=True), tmp_path / "tied", 1)
    assert "it has no output_layer.weight" in said(Case(), tmp_path / "tied")
