"""Configurations by name or file: found, composed by Hydra, and changed key by key."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from omegaconf import DictConfig, OmegaConf

from roll.config.errors import ConfigError, Problem

SHIPPED: Final = Path(__file__).parents[1] / "presets"
"""Configurations and exercises that come with the package: those of ``examples/``."""

_EXTENSIONS: Final = (".yaml", ".yml")


def shipped_configs() -> Path:
    """Return the folder of the configurations that come with the package."""
    return (SHIPPED / "config").resolve()


def shipped_data(path: Path) -> Path:
    """Return ``path``, or where the package has it if it names an exercise of ``examples/data`` that is not there."""
    if path.exists() or path.parts[:2] != ("examples", "data"):
        return path
    own = SHIPPED.joinpath(*path.parts[1:])
    return own if own.exists() else path


def compose(name: str | Path, overrides: Sequence[str] = ()) -> tuple[DictConfig, Path]:
    """Return a composed configuration and its primary file.

    Args:
        name: A name (``sokoban``) of a file in the working directory, its folder ``config`` or the package, or the path
            of a YAML file. Its defaults list may name the package's configurations.
        overrides: Changes as on the command line, in Hydra's grammar.

    Raises:
        ConfigError: There is no such file, or it cannot be composed.
    """
    # Hydra takes a quarter of a second to import; a mapping needs none of it.
    import hydra
    from hydra.errors import HydraException

    path = _find(name)
    folders = [path.parent, shipped_configs()]
    changes = [upsert(override, folders) for override in overrides]
    changes += [f"hydra.searchpath=[{quoted(f'file://{shipped_configs()}')}]"]
    try:
        with hydra.initialize_config_dir(str(path.parent), version_base="1.3"), warnings.catch_warnings():
            # A file without _self_ overrides its defaults, which is what the guide's own files rely on.
            warnings.filterwarnings("ignore", message=".*Defaults list is missing `_self_`.*")
            return hydra.compose(path.name, changes), path
    except (HydraException, OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        message = " ".join(str(error).split())
        raise ConfigError([Problem(str(name), message, "correct the file or the overrides.")]) from error


def change(composed: DictConfig, changes: Mapping[str, Any]) -> None:
    """Set keys of a composed configuration; dots go into sections, and keys may be new. A mapping is merged."""
    for key, value in changes.items():
        OmegaConf.update(composed, key, plain(value), merge=True, force_add=True)


def plain(value: Any) -> Any:
    """Return a Python value as YAML knows it."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def upsert(override: str, folders: Iterable[Path]) -> str:
    """Let a key be set that the YAML file leaves at its default: the models know which keys exist, not Hydra."""
    key, equals, value = override.partition("=")
    if "=" in value and value[0] not in "'\"[{":
        # A path such as checkpoints/step=000020, which Hydra's grammar takes only in quotes.
        override = f"{key}={quoted(value)}"
    if not equals or key.startswith(("+", "~", "hydra.")) or "/" in key or "@" in key:
        return override
    if any((folder / key).is_dir() for folder in folders):
        return override
    return f"++{override}"


def quoted(text: str) -> str:
    """Return ``text`` as a quoted value of Hydra's override grammar."""
    return "'" + text.replace("'", "\\'") + "'"


def primary_names(folders: Iterable[Path]) -> list[str]:
    """Return the names of the configurations of runs in ``folders``, sorted."""
    return sorted({path.stem for folder in folders for path in folder.glob("*.yaml") if is_primary(path)})


def is_primary(path: Path) -> bool:
    """Tell a configuration of a run from a library of tags or engine options: only the former has a defaults list."""
    return any(line.startswith("defaults:") for line in path.read_text(encoding="utf-8", errors="replace").splitlines())


def _find(name: str | Path) -> Path:
    folders = [Path.cwd(), Path.cwd() / "config", shipped_configs()]
    file = str(name) if str(name).endswith(_EXTENSIONS) else f"{name}.yaml"
    for folder in folders:
        if (folder / file).is_file():
            return (folder / file).resolve()
    names = primary_names([folder for folder in folders if folder.is_dir()])
    close = difflib.get_close_matches(Path(name).stem, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    fix = f"{hint}Name a YAML file, or one of {', '.join(names)}."
    raise ConfigError([Problem(str(name), f"no such configuration (looked for {file} in {Path.cwd()}).", fix)])
