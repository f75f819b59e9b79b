"""A YAML file that stands alone."""

from __future__ import annotations

from pathlib import Path

import yaml

from roll.config.errors import ConfigError, Problem
from roll.convert.foreign import Foreign


def read_yaml(path: Path) -> Foreign:
    """Return the keys of a YAML file.

    Raises:
        ConfigError: It is no YAML, or no mapping.
    """
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        first = " ".join(str(error).split())
        raise ConfigError([Problem("INPUT", f"this is no YAML: {first}.", "correct the file.", str(path))]) from error
    if not isinstance(tree, dict):
        raise ConfigError([Problem("INPUT", "the file holds no keys.", "name a configuration.", str(path))])
    return Foreign(tree, path)
