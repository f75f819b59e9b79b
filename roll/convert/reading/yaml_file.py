"""A YAML file that stands alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from roll.config.errors import ConfigError, Problem
from roll.convert.foreign import Foreign


def read_yaml(path: Path) -> Foreign:
    """Return the keys of a YAML file.

    Raises:
        ConfigError: It is no YAML, or no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError) as error:
        raise ConfigError([Problem("INPUT", f"it cannot be read: {error}.", "correct the file.", str(path))]) from error
    return Foreign(parse_yaml(text, str(path)), path)


def parse_yaml(text: str, name: str) -> dict[str, Any]:
    """Return the keys of YAML.

    Args:
        text: The YAML.
        name: What errors call it.

    Raises:
        ConfigError: It is no YAML, or no mapping.
    """
    try:
        # Reads 1e-6 as a number, which YAML 1.1 takes for text.
        tree = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        first = " ".join(str(error).split())
        raise ConfigError([Problem("INPUT", f"this is no YAML: {first}.", "correct the file.", name)]) from error
    if not isinstance(tree, dict):
        raise ConfigError([Problem("INPUT", "the file holds no keys.", "name a configuration.", name)])
    return {str(key): value for key, value in tree.items()}
