from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from roll.models.errors import ModelNotFoundError
from roll.models.finding import resolve_pretrain
from roll.models.loading import load_model, load_tokenizer
from roll.models.toy import WEIGHTS_DIRECTORY
from tests.models.tiny_vision import make_tiny_vision

LOADERS = [load_model, load_tokenizer]


def tiny() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=20,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
        )
    )


@pytest.mark.parametrize("load", LOADERS)
def test_a_name_that_is_nowhere_says_so_and_lists_what_can_be_named(load) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        load("nobody/no-such-model")
    message = str(caught.value)
    assert message.startswith("'nobody/no-such-model': it is no folder here; ")
    for way in ("pretrain=toy", "save_pretrained", "Hugging Face name"):
        assert way in message
    assert "\n" not in message


@pytest.mark.parametrize("load", LOADERS)
def test_a_folder_without_a_model_is_told_apart(load, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="that folder has no loadable model"):
        load(str(tmp_path))
    with pytest.raises(ModelNotFoundError, match="there is no such folder"):
        load(str(tmp_path / "absent"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelNotFoundError, match="that folder has no loadable model"):
        load(str(tmp_path))


def test_names_are_resolved_without_loading(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_pretrain("toy") == str(WEIGHTS_DIRECTORY)
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "config.json").write_text("{}")
    assert resolve_pretrain("~/policy") == str(tmp_path / "policy")
    assert WEIGHTS_DIRECTORY.parent.name == "toy"


def test_a_saved_folder_loads_in_the_precision_asked_for(tmp_path: Path) -> None:
    tiny().to(torch.bfloat16).save_pretrained(tmp_path)
    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, None: torch.bfloat16}
    for dtype, expected in kinds.items():
        model = load_model(str(tmp_path), dtype=dtype)
        assert {p.dtype for p in model.parameters()} == {expected}
        assert not model.training


def test_the_attention_kernel_is_the_one_asked_for(tmp_path: Path) -> None:
    tiny().save_pretrained(tmp_path)
    for name in ("eager", "sdpa"):
        assert load_model(str(tmp_path), attn_implementation=name).config._attn_implementation == name


def test_a_model_that_sees_is_loaded_with_its_vision_part(tmp_path: Path) -> None:
    folder = make_tiny_vision(tmp_path / "vision")
    model = load_model(str(folder))
    assert type(model).__name__ == "Qwen2VLForConditionalGeneration"
    assert "<|image_pad|>" in load_tokenizer(str(folder)).get_vocab()
    assert any(name.startswith("model.visual.") for name, _ in model.named_parameters())
