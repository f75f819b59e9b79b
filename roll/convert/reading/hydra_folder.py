"""A YAML file with a defaults list, composed by Hydra with the files of its own folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from roll.config.composing import compose, is_primary
from roll.config.dialects import ForeignKey
from roll.config.dialects.mindspeed import is_called_alike
from roll.convert.foreign import Foreign
from roll.convert.reading.yaml_file import read_yaml


def has_defaults(path: Path) -> bool:
    """Tell whether a file says which others it is composed of."""
    return is_primary(path)


def describes_its_model(path: Path) -> Foreign | None:
    """Return a file of MindSpeed-RL, whose defaults list names descriptions of architectures and nothing else.

    An architecture comes with the weights of the model, in its config.json, so that its description is not read.

    Raises:
        ConfigError: It is no YAML.
    """
    foreign = read_yaml(path)
    if not {"megatron_training", "rl_config"} & foreign.tree.keys():
        return None
    tree = dict(foreign.tree)
    listed = tree.pop("defaults", None) or []
    model = (tree.get("megatron_training") or {}).get("tokenizer_name_or_path")
    left_out = []
    for entry in listed:
        if not isinstance(entry, dict):
            continue
        for group, given in entry.items():
            names = given if isinstance(given, list) else [given]
            if any(is_called_alike(name, model) for name in names):
                left_out.append(ForeignKey(f"defaults.{group}", "translated", ("pretrain",)))
                continue
            why = f"the architecture of {', '.join(map(str, names))} is that of the config.json beside the weights"
            left_out.append(ForeignKey(f"defaults.{group}", "no_effect", why=why))
    return replace(foreign, tree=tree, left_out=tuple(left_out))


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
