"""A folder of its own for a part of several runs: what one configuration writes goes there, wherever it said."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Final

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

_OUTPUT_KEYS: Final = (
    *("logging_dir", "render_save_dir", "checkpoint_config.output_dir"),
    *("tracker_kwargs.log_dir", "tracker_kwargs.tensorboard.log_dir", "tracker_kwargs.wandb.dir"),
)


def move_outputs(composed: DictConfig, folder: str | Path, keep: Container[str] = ()) -> None:
    """Let a run write to ``folder``, also where the YAML file spells out folders besides ``output_dir``.

    Args:
        composed: Its composed configuration, which is changed.
        folder: Its ``output_dir`` from now on.
        keep: Top-level keys that stay as they are.
    """
    keys = [key for key in _OUTPUT_KEYS if key.split(".")[0] not in keep]
    before = {key: _selected(composed, key) for key in keys}
    base = Path(_selected(composed, "output_dir") or "output").resolve()
    with open_dict(composed):
        composed.output_dir = str(folder)
        for key, value in before.items():
            # A value that changed is an interpolation of output_dir: it has moved already.
            if value is None or _selected(composed, key) != value:
                continue
            place = Path(value).resolve()
            inside = place.relative_to(base) if place.is_relative_to(base) else Path(key.replace(".", "_"))
            OmegaConf.update(composed, key, str(Path(folder) / inside))


def _selected(composed: DictConfig, key: str) -> str | None:
    """Return the path at a key, ``None`` where there is none; what is wrong with it is said when all is checked."""
    try:
        value = OmegaConf.select(composed, key)
    except OmegaConfBaseException:
        return None
    return value if isinstance(value, str) else None
