"""``roll export``: the folder is loaded by plain transformers in a process without roll, and gives the same logits."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from roll.cli.app import main
from roll.models.toy import TOYS

WITNESS = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
assert not any(name.partition(".")[0] == "roll" for name in sys.modules)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
words = AutoTokenizer.from_pretrained(sys.argv[1])
ids = torch.tensor([words("Up, Down")["input_ids"]])
print(json.dumps(model(ids).logits.float().tolist()))
"""


def exported(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["export", *arguments])
    captured = capsys.readouterr()
    return int(left.value.code or 0), captured.out, captured.err


def saved_by_trainer(folder: Path) -> Path:
    """Write a checkpoint as the trainer of one process does, of weights that no shipped model has."""
    model = AutoModelForCausalLM.from_pretrained(TOYS["toy"])
    with torch.no_grad():
        model.get_input_embeddings().weight.add_(0.01)
    folder.mkdir(parents=True)
    torch.save({"model": model.state_dict()}, folder / "train_state.pt")
    shutil.copytree(TOYS["toy"], folder / "hf")
    shutil.copytree(TOYS["toy"], folder / "train_model")
    return folder


def logits(folder: Path, cwd: Path) -> torch.Tensor:
    words = [sys.executable, "-c", WITNESS, str(folder)]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=True)
    return torch.tensor(json.loads(done.stdout))


@pytest.mark.exhaustive
@pytest.mark.processes
def test_plain_transformers_gives_the_same_logits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = saved_by_trainer(tmp_path / "step=000008")
    code, out, err = exported([str(checkpoint), "--to", str(tmp_path / "model")], capsys)
    assert code == 0 and "Written" in out, err
    model = AutoModelForCausalLM.from_pretrained(TOYS["toy"]).eval()
    with torch.no_grad():
        model.get_input_embeddings().weight.add_(0.01)
        ids = AutoTokenizer.from_pretrained(TOYS["toy"])("Up, Down", return_tensors="pt")["input_ids"]
        expected = model(ids).logits
    assert torch.equal(logits(tmp_path / "model", tmp_path), expected)


@pytest.mark.long
def test_what_other_trainers_saved_is_taken_from_the_model_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(TOYS["toy"], tmp_path / "step=000008" / "hf")
    code, _, err = exported([str(tmp_path / "step=000008"), "--to", str(tmp_path / "m"), "--dtype", "bf16"], capsys)
    assert code == 0, err
    before = AutoModelForCausalLM.from_pretrained(TOYS["toy"]).state_dict()
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype="auto").state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name].bfloat16(), after[name]) for name in before)


def test_what_is_no_checkpoint_and_a_folder_that_is_taken_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = exported([str(tmp_path), "--to", str(tmp_path / "m")], capsys)
    assert code == 2 and "is no checkpoint" in err and not (tmp_path / "m").exists()
    code, _, err = exported([str(TOYS["toy"]), "--to", str(tmp_path.parent)], capsys)
    assert code == 2 and "holds something already" in err


def test_without_llama_cpp_it_says_what_is_missing_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_CPP", str(tmp_path))
    code, _, err = exported([str(TOYS["toy"]), "--to", str(tmp_path / "m"), "--gguf", str(tmp_path / "m.gguf")], capsys)
    assert code == 3 and "convert_hf_to_gguf.py" in err and not (tmp_path / "m").exists()


@pytest.mark.processes
def test_gguf_is_written_by_the_converter_that_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_CPP", str(tmp_path))
    converter = "import pathlib, sys; pathlib.Path(sys.argv[3]).write_text(sys.argv[1])"
    (tmp_path / "convert_hf_to_gguf.py").write_text(converter)
    code, out, err = exported(
        [str(TOYS["toy"]), "--to", str(tmp_path / "m"), "--gguf", str(tmp_path / "m.gguf")], capsys
    )
    assert code == 0 and (tmp_path / "m.gguf").read_text() == str(tmp_path / "m"), err
    (tmp_path / "convert_hf_to_gguf.py").write_text("import sys; sys.exit('unknown architecture')")
    code, _, err = exported([str(TOYS["toy"]), "--to", str(tmp_path / "n"), "--gguf", str(tmp_path / "n.gguf")], capsys)
    assert code == 2 and "unknown architecture" in err
