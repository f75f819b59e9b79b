"""A YAML file with a defaults list, composed by Hydra with the files of its own folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from roll.config.composing import compose, is_primary
from roll.convert.foreign import Foreign


def has_defaults(path: Path) -> bool:
    """Tell whether a file says which others it is composed of."""
    return is_primary(path)


def read_hydra(path: Path) -> Foreign:
    """Return what a file and those of its defaults list make together, interpolations left as they are.

    Args:
        path: The primary file; ``../config/envs@_here_`` and the like are found from its folder.

    Raises:
        ConfigError: A file of its defaults list is not there, or they cannot be composed.
    """
    composed, _ = compose(path)
    tree: Any = OmegaConf.to_container(composed, resolve=False)
    return Foreign(tree, path)
