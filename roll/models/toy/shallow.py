"""``toy_shallow``: ``toy_sokoban`` without the second half of its layers, for distillation to begin with."""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from filelock import FileLock
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from roll.models.errors import ModelNotFoundError
from roll.models.smollm2 import CACHE_VARIABLE, cache_folder
from roll.models.toy import SOKOBAN_WEIGHTS_DIRECTORY

NAME: Final = "toy_shallow"
"""What ``pretrain`` calls it."""

KEPT: Final = (0, 1)
"""The layers that stay: the first ones."""

_RECIPE = 2
"""Raised whenever something else is written, so that folders of earlier versions are not used."""


@functools.cache
def shallow_folder() -> Path:
    """Return the folder with the model in the Hugging Face format; cut it out if it is not there yet.

    Raises:
        ModelNotFoundError: If the cache folder cannot be written.
    """
    folder = cache_folder() / f"{NAME}-{_RECIPE}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):
            if not folder.is_dir():
                with tempfile.TemporaryDirectory(prefix=f".{NAME}.", dir=folder.parent) as scratch:
                    write_shallow(Path(scratch) / "made")
                    shutil.move(Path(scratch) / "made", folder)
    except OSError as error:
        message = f"{NAME!r}: it could not be written into {folder.parent} ({error})."
        fix = f"make room there, or set the environment variable {CACHE_VARIABLE} to a folder that can be written."
        raise ModelNotFoundError(message, fix) from error
    return folder


def write_shallow(folder: Path) -> None:
    """Write the model and its tokenizer to a new folder."""
    model: Any = AutoModelForCausalLM.from_pretrained(SOKOBAN_WEIGHTS_DIRECTORY)
    model.model.layers = nn.ModuleList(model.model.layers[number] for number in KEPT)
    model.config.num_hidden_layers = len(KEPT)
    model.config.layer_types = [model.config.layer_types[number] for number in KEPT]
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(SOKOBAN_WEIGHTS_DIRECTORY).save_pretrained(folder)
