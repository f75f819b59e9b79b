"""Hugging Face weights one at a time: from a folder or a loaded model, and into files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Final

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, GenerationConfig, PretrainedConfig, PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from roll.strategies.training.adapters import base_name, is_adapter

_EXPERT = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")

SHARD_BYTES: Final = 4 * 2**30
"""Size of a file of weights."""


class HfWeights:
    """Weights by their names in checkpoint files, where every expert has its own.

    Args:
        source: A folder with ``config.json`` and safetensors files, or a loaded model, which may keep the experts of a
            layer in one tensor. Of adapters nothing is read.
    """

    def __init__(self, source: PreTrainedModel | str | Path) -> None:
        self._state: dict[str, Tensor] | None = None
        self._folder = Path()
        self.generation_config: GenerationConfig | None = None
        self.config: PretrainedConfig
        if isinstance(source, PreTrainedModel):
            self.config = source.config
            state = source.state_dict()
            self._state = {base_name(name): tensor for name, tensor in state.items() if not is_adapter(name)}
            self.generation_config = getattr(source, "generation_config", None)
            return
        self._folder = folder = Path(source)
        self.config = AutoConfig.from_pretrained(folder)
        if (folder / "generation_config.json").is_file():
            self.generation_config = GenerationConfig.from_pretrained(folder)

    @cached_property
    def _files(self) -> dict[str, Path]:
        """The file of each weight of the folder.

        Raises:
            FileNotFoundError: The folder has no safetensors files.
        """
        return _files(self._folder)

    def __contains__(self, name: str) -> bool:
        """Return whether there is such a weight."""
        return name in (self._files if self._state is None else self._state) or self._fused(name) is not None

    def __getitem__(self, name: str) -> Tensor:
        """Return a weight, on whatever device it is.

        Raises:
            KeyError: There is no such weight.
            FileNotFoundError: The folder has no safetensors files.
        """
        if self._state is None:
            if name not in self._files:
                raise KeyError(f"The model folder has no weight {name!r}.")
            with safe_open(self._files[name], framework="pt") as file:
                return file.get_tensor(name)
        if name in self._state:
            return self._state[name]
        fused = self._fused(name)
        if fused is None:
            raise KeyError(f"The model has no weight {name!r}.")
        return fused

    def _fused(self, name: str) -> Tensor | None:
        """Return an expert's weight from the tensor of all experts of the layer."""
        expert = _EXPERT.fullmatch(name)
        if expert is None or self._state is None:
            return None
        prefix, number, part = expert[1], int(expert[2]), expert[3]
        if part == "down":
            whole = self._state.get(f"{prefix}.down_proj")
            return None if whole is None else whole[number]
        both = self._state.get(f"{prefix}.gate_up_proj")
        return None if both is None else both[number].chunk(2, 0)[0 if part == "gate" else 1]


def _files(folder: Path) -> dict[str, Path]:
    """Return the file of each weight."""
    index, single = folder / SAFE_WEIGHTS_INDEX_NAME, folder / SAFE_WEIGHTS_NAME
    if index.is_file():
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {name: folder / file for name, file in places.items()}
    if not single.is_file():
        raise FileNotFoundError(
            f"{folder} has neither {SAFE_WEIGHTS_NAME} nor {SAFE_WEIGHTS_INDEX_NAME}. "
            "Save the model with save_pretrained, which writes safetensors files."
        )
    with safe_open(single, framework="pt") as file:
        return dict.fromkeys(file.keys(), single)


class HfWriter:
    """Writes weights to safetensors files of bounded size as they come, so that a whole model is never in memory.

    Args:
        directory: Made if it is not there.
        shard_bytes: A file is written when it would become larger.
    """

    def __init__(self, directory: Path, shard_bytes: int = SHARD_BYTES) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._shard_bytes = shard_bytes
        self._shards: list[list[str]] = []
        self._pending: dict[str, Tensor] = {}
        self._bytes = 0
        self._total = 0

    def write(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Add weights of any shape, by name."""
        for name, tensor in weights:
            size = tensor.numel() * tensor.element_size()
            if self._pending and self._bytes + size > self._shard_bytes:
                self._flush()
            # A copy: the stream may use the memory again.
            self._pending[name] = tensor.detach().to("cpu", copy=True).contiguous()
            self._bytes += size
            self._total += size

    def close(self) -> None:
        """Write what is left, and the index where there are several files."""
        self._flush()
        count = len(self._shards)
        places: dict[str, str] = {}
        for number, names in enumerate(self._shards, start=1):
            file = SAFE_WEIGHTS_NAME if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"
            self._partial(number).rename(self._directory / file)
            places.update(dict.fromkeys(names, file))
        if count > 1:
            index = {"metadata": {"total_size": self._total}, "weight_map": places}
            (self._directory / SAFE_WEIGHTS_INDEX_NAME).write_text(json.dumps(index, indent=2), encoding="utf-8")

    def _flush(self) -> None:
        if not self._pending:
            return
        self._shards.append(list(self._pending))
        save_file(self._pending, self._partial(len(self._shards)), metadata={"format": "pt"})
        self._pending, self._bytes = {}, 0

    def _partial(self, number: int) -> Path:
        return self._directory / f"model-{number:05d}.safetensors.partial"


def torch_dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a number format in ``config.json``."""
    return str(dtype).removeprefix("torch.")
