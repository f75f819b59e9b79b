"""Reading: one file for each kind of input, and the choice between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from roll.config.errors import ConfigError, Problem
from roll.convert.foreign import Foreign
from roll.convert.reading.hydra_folder import describes_its_model, has_defaults, read_hydra
from roll.convert.reading.interpolations import as_written, resolved
from roll.convert.reading.overrides import read_overrides
from roll.convert.reading.shell import read_script
from roll.convert.reading.yaml_file import read_yaml

__all__ = ["as_written", "read"]

_YAML: Final = (".yaml", ".yml")
_SHELL: Final = (".sh", ".bash")


def read(inputs: Sequence[str | Path]) -> Foreign:
    """Return the configuration that ``inputs`` are, interpolations resolved.

    Args:
        inputs: A YAML file, a file of overrides or a launch script, or a folder of Hydra configurations and the name of
            one in it.

    Raises:
        ConfigError: A file is not there, or is none of these.
    """
    path = _primary(inputs)
    if path.suffix not in _YAML:
        foreign = read_script(path) if _is_script(path) else read_overrides(path)
    elif not has_defaults(path):
        foreign = read_yaml(path)
    else:
        foreign = describes_its_model(path) or read_hydra(path)
    return replace(foreign, tree=resolved(foreign.tree))


def _is_script(path: Path) -> bool:
    """Tell a script from a file of overrides: by its name, or by its first line."""
    if path.suffix in _SHELL:
        return True
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.readline().startswith("#!")


def _primary(inputs: Sequence[str | Path]) -> Path:
    first, *rest = map(Path, inputs)
    if not first.is_dir():
        if not first.is_file():
            raise ConfigError([Problem("INPUT", "there is no such file.", "correct the path.", str(first))])
        return first
    named = [path for path in first.iterdir() if path.suffix in _YAML]
    if not rest:
        names = ", ".join(sorted(path.stem for path in named)) or "none"
        fix = f"name one of its configurations after it ({names})."
        raise ConfigError([Problem("INPUT", "a folder holds many configurations.", fix, str(first))])
    wanted = first / rest[0]
    found = [wanted.with_name(wanted.name + suffix) for suffix in ("", *_YAML)]
    path = next((each for each in found if each.is_file()), None)
    if path is None:
        names = ", ".join(sorted(each.stem for each in named)) or "none"
        raise ConfigError(
            [Problem("INPUT", f"{first} has no such configuration.", f"choose from {names}.", str(rest[0]))]
        )
    return path
