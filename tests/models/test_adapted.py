"""Models with adapters that have their weights in common, held against peft."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import PeftModel

from roll.models.adapted import with_adapter
from roll.models.loading import load_model
from roll.models.lora import add_adapters
from roll.strategies.jobs import TrainOptions
from roll.strategies.training.pytorch.train import FsdpTrainStrategy


def adapters(folder: Path, seed: int, model: str = "toy", **wanted: object) -> Path:
    """Write adapters that change what a model says."""
    adapted = add_adapters(load_model(model), rank=2, seed=seed, **wanted)  # type: ignore[arg-type]
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(seed))
    FsdpTrainStrategy(adapted, TrainOptions(learning_rate=1e-4)).save_adapters(folder)
    return folder


def test_several_share_their_weights_and_say_what_peft_says(tmp_path: Path) -> None:
    base = load_model("toy")
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        plain = base(ids).logits
        for number in (1, 2):
            folder = adapters(tmp_path / str(number), number)
            found = with_adapter(base, folder)
            expected = PeftModel.from_pretrained(load_model("toy"), str(folder))(ids).logits
            assert not torch.equal(found(ids).logits, plain)
            torch.testing.assert_close(found(ids).logits, expected)
            shared = {parameter.data_ptr() for parameter in base.parameters()}
            assert shared <= {parameter.data_ptr() for parameter in found.parameters()}
        assert torch.equal(base(ids).logits, plain)


def test_what_holds_no_adapters_for_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no LoRA adapters"):
        with_adapter(load_model("toy"), tmp_path)
    with pytest.raises(ValueError, match="for another model"):
        with_adapter(load_model("toy"), adapters(tmp_path / "other", 1, "toy_sokoban"))
