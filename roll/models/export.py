"""From whatever a run or another program has saved to a folder that any program of the field loads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from roll.models.convert import ConversionError, convert_checkpoint
from roll.models.image_processor import copy_image_processor
from roll.models.loading import DTYPES
from roll.strategies.training.pytorch.checkpoint import CHECKPOINT_FILE, CHECKPOINT_FOLDER

CONVERTER = "convert_hf_to_gguf.py"
"""llama.cpp's program that writes GGUF."""

LLAMA_CPP = "LLAMA_CPP"
"""The environment variable that names the folder of llama.cpp's sources."""

_HF = "hf"


class ConverterMissingError(RuntimeError):
    """This machine has no llama.cpp to write GGUF with."""


def export_checkpoint(
    checkpoint: Path,
    out: Path,
    *,
    config: Path | None = None,
    tokenizer: Path | None = None,
    dtype: str | None = None,
) -> None:
    """Write a checkpoint as a folder in Hugging Face format, LoRA adapters merged, with its tokenizer.

    Args:
        checkpoint: A checkpoint of any strategy, or a folder in Hugging Face format. What ``fsdp_train`` wrote is read
            itself, one file or the shards of any number of ranks; of others the model beside it, which has the same
            weights.
        out: The folder to make; it must not hold anything.
        config: Folder with the ``config.json`` of the model, where the checkpoint has none.
        tokenizer: Folder of another tokenizer.
        dtype: ``fp32``, ``bf16`` or ``fp16``; ``None`` keeps the precision.

    Raises:
        ConversionError: ``checkpoint`` is none, or ``out`` holds something.
    """
    if (checkpoint / CHECKPOINT_FILE).is_file() or (checkpoint / CHECKPOINT_FOLDER / ".metadata").is_file():
        convert_checkpoint(checkpoint, out, config=config, tokenizer=tokenizer, dtype=dtype)
        return
    model = next((folder for folder in (checkpoint / _HF, checkpoint) if (folder / "config.json").is_file()), None)
    if model is None:
        raise ConversionError(
            f"{checkpoint} is no checkpoint: it has neither {CHECKPOINT_FILE}, a whole folder {CHECKPOINT_FOLDER}, nor "
            "a model in Hugging Face format. Name a folder like output/<run>/checkpoints/step=000020."
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConversionError(f"{out} holds something already. Name a new folder.")
    partial = out.absolute().with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        loaded = _class_of(model).from_pretrained(model, dtype="auto" if dtype is None else DTYPES[dtype])
        loaded.save_pretrained(partial)
        words = tokenizer or (model if (model / "tokenizer_config.json").is_file() else None)
        if words is not None:
            AutoTokenizer.from_pretrained(words).save_pretrained(partial)
        copy_image_processor(str(model), partial)
        partial.replace(out.absolute())  # whole or not at all: after Ctrl-C, or on a full disk
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _class_of(folder: Path) -> Any:
    """Return the class of a saved model: a reward model is to stay one."""
    return getattr(transformers, (AutoConfig.from_pretrained(folder).architectures or [""])[0], AutoModelForCausalLM)


def find_converter() -> Path:
    """Return llama.cpp's converter: in the folder that ``LLAMA_CPP`` names, or on the path of programs.

    Raises:
        ConverterMissingError: It is not there; says how to get it.
    """
    named = os.environ.get(LLAMA_CPP)
    found = Path(named) / CONVERTER if named else Path(shutil.which(CONVERTER) or "")
    if found.is_file():
        return found
    looked = f"in {named} ({LLAMA_CPP})" if named else "on the path"
    raise ConverterMissingError(
        f"GGUF is written by llama.cpp's {CONVERTER}, which is not {looked}. Fix: git clone "
        f"https://github.com/ggml-org/llama.cpp, pip install gguf, and set {LLAMA_CPP} to that folder. Without it, "
        "leave out --gguf: the folder alone is what transformers, vLLM and SGLang load."
    )


def write_gguf(model: Path, out: Path, converter: Path) -> None:
    """Write a Hugging Face folder as one GGUF file.

    Args:
        model: The folder.
        out: The file.
        converter: What :func:`find_converter` returned.

    Raises:
        ConversionError: The converter fails; the message holds what it said last.
    """
    words = [sys.executable, str(converter), str(model), "--outfile", str(out)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0 or not out.is_file():
        said = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise ConversionError(f"{converter} could not convert {model}: {' '.join(said) or f'code {done.returncode}'}")
