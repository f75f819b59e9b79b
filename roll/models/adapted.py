"""A model with LoRA adapters of somebody's, beside others of the same weights."""

from __future__ import annotations

import copy
from pathlib import Path

from transformers import PreTrainedModel


def with_adapter(model: PreTrainedModel, folder: str | Path) -> PreTrainedModel:
    """Return a model that has adapters from a folder, and its weights in common with ``model``, which stays as it is.

    Args:
        model: What the adapters were trained for, without any.
        folder: What ``save_adapters()`` and peft write: ``adapter_config.json`` and the adapters.

    Raises:
        FileNotFoundError: There are none.
        ModuleNotFoundError: peft is not installed.
        ValueError: They are for another model.
    """
    if not Path(folder, "adapter_config.json").is_file():
        raise FileNotFoundError(f"{folder} holds no LoRA adapters: there is no adapter_config.json.")
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    twin: PreTrainedModel = copy.deepcopy(model, shared)
    try:
        loaded = twin.load_adapter(str(folder))
    except (RuntimeError, KeyError) as error:
        raise ValueError(
            f"the adapters in {folder} are for another model than {model.name_or_path}: {error}"
        ) from error
    missing = [*getattr(loaded, "missing_keys", ()), *getattr(loaded, "unexpected_keys", ())]
    if missing:
        raise ValueError(f"the adapters in {folder} are for another model than {model.name_or_path}: {missing[0]}")
    twin.requires_grad_(False)
    return twin.eval()
