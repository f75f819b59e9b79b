"""Configurations by name or file: found, composed by Hydra, and changed key by key."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from omegaconf import DictConfig, ListConfig, OmegaConf

from roll.common.spelling import nearest
from roll.config.errors import ConfigError, Problem, choose_from
from roll.config.shipped import shipped_configs
from roll.config.sources import listed_stages, shown_path
from roll.config.yaml_files import require_sound_files

_EXTENSIONS: Final = (".yaml", ".yml")
_MAY_BE_A_PATH: Final = {"experience": "experience.path"}
"""Sections that a path alone can stand for, and the key that it then is."""


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

    path = find(name)
    folders = [path.parent, shipped_configs()]
    require_sound_files(path, folders)
    require_sound_overrides(overrides, folders)
    changes = [upsert(override, folders, listed_stages(path)) for override in overrides]
    changes.append(search_path(path, [shipped_configs()]))
    try:
        initialized = hydra.initialize_config_dir
        with _own_hydra(), initialized(str(path.parent), version_base="1.3"), warnings.catch_warnings():
            # A file without _self_ overrides its defaults, which is what the guide's own files rely on.
            warnings.filterwarnings("ignore", message=".*Defaults list is missing `_self_`.*")
            return hydra.compose(path.name, changes), path
    except Exception as error:
        raise composition_error(error, shown_path(path)) from error


@contextmanager
def _own_hydra() -> Iterator[None]:
    """Let Hydra compose where it is at work already: in a run that it started."""
    from hydra.core.global_hydra import GlobalHydra

    held = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = held


def search_path(primary: Path | None, folders: Iterable[Path]) -> str:
    """Return the override that lets Hydra look into ``folders``, behind those that ``primary`` names itself."""
    own = None if primary is None else OmegaConf.select(OmegaConf.load(primary), "hydra.searchpath")
    places = [*(own or ()), *(f"file://{folder}" for folder in folders)]
    return f"hydra.searchpath=[{','.join(quoted(str(place)) for place in places)}]"


def composition_error(error: Exception, source: str | None) -> ConfigError:
    """Return what Hydra could not compose as a problem of the configuration.

    Args:
        error: What Hydra raised, before anything else had begun.
        source: The primary file.
    """
    place, given = source or "command line", getattr(error, "override", None)
    message = _first_line(error).rstrip(".") or type(error).__name__
    fix = "correct the file or the override; HYDRA_FULL_ERROR=1 in the environment shows where it happens."
    if given is not None:
        place = str(given).lstrip("+~").partition("=")[0]
        message = f"{str(given).removeprefix('++')!r} cannot be read: {message}"
        fix = f"quote the value for Hydra and all of it for the shell: '{place}=\"…\"'."
    elif getattr(error, "missing_cfg_file", None) is not None:
        options = getattr(error, "options", None)
        name = Path(str(error.missing_cfg_file)).name  # type: ignore[attr-defined]
        fix = choose_from(name, options) if options else "correct the name in the defaults list, or make the file."
    elif isinstance(error, RecursionError):
        message, fix = "its parts lead back to themselves", "look for a defaults list that names its own file."
    return ConfigError([Problem(place, f"{message}.", fix)], source=source)


def require_sound_overrides(overrides: Sequence[str], folders: Sequence[Path]) -> None:
    """Check what Hydra would not explain: overrides without a key, and folders of files where a name is needed.

    Raises:
        ConfigError: Lists every such override.
    """
    problems = []
    for override in overrides:
        key, equals, value = override.partition("=")
        key = key.lstrip("+~")
        if not key:
            problems.append(Problem("command line", f"{override!r} has no key.", "write key=value."))
        elif equals and any((folder / key).is_dir() for folder in folders):
            problems += _choice_problems(key, value, folders)
    if problems:
        raise ConfigError(problems)


def _choice_problems(key: str, value: str, folders: Sequence[Path]) -> list[Problem]:
    """Return what is wrong with the choice of a file in the folder that ``key`` names."""
    choices = sorted({path.stem for folder in folders for path in (folder / key).glob("*.yaml")})
    if value.startswith(("[", "$", "'", '"')) or {*value.split(",")} <= {*choices}:
        return []
    dots = f"set single keys with dots: {key.replace('/', '.')}.<key>=<value>."
    if not choices:
        return [Problem(key, f"it is a section, and cannot be {value or 'empty'}.", dots)]
    fix = f"{choose_from(value, choices)} Or {dots}"
    return [Problem(key, f"it is chosen by the name of a file in the folder {key} (found {value}).", fix)]


def from_mapping(values: Mapping[str, Any]) -> DictConfig:
    """Return a mapping as what files are composed to.

    Raises:
        ConfigError: It holds keys, values or interpolations that a configuration cannot hold; lists all of them.
    """
    given = plain(values)
    try:
        return OmegaConf.create(given)
    except Exception as error:  # OmegaConf says in many ways what it does not know, and of one place at a time
        problems = list(_unknown(given, ())) or [Problem("configuration", _first_line(error), _KEYS_AND_VALUES)]
        raise ConfigError(problems) from error


_KEYS_AND_VALUES: Final = "use text as keys, and text, numbers, true, false, null, lists and sections as values."


def _unknown(value: Any, path: tuple[str, ...]) -> Iterator[Problem]:
    """Yield the places that OmegaConf cannot take over."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str | int | float | bool):
                yield Problem(".".join(path) or "configuration", f"the key {key!r} is no text.", _KEYS_AND_VALUES)
            else:
                yield from _unknown(item, (*path, str(key)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown(item, (*path, str(index)))
    else:
        try:
            OmegaConf.create({"value": value})
        except Exception as error:
            fix = "close the interpolation, or write \\${ for the text ${." if "${" in str(value) else _KEYS_AND_VALUES
            yield Problem(".".join(path), _first_line(error), fix, value)


def _first_line(error: Exception) -> str:
    return " ".join(str(error).partition("\n")[0].split()).rstrip(".") + "."


def change(composed: DictConfig, changes: Mapping[str, Any]) -> None:
    """Set keys of a composed configuration; dots go into sections, and keys may be new. A mapping is merged."""
    listed = composed.get("stages") if isinstance(composed.get("stages"), ListConfig) else ()
    stages = [str(each.get("name")) if isinstance(each, DictConfig) else "" for each in listed]
    for key, value in changes.items():
        OmegaConf.update(composed, _numbered(key, stages), plain(value), merge=True, force_add=True)


def _numbered(key: str, stages: Sequence[str]) -> str:
    """Return the path of a key in a listed stage that is named, by the number by which OmegaConf knows it."""
    head, *below = key.split(".")
    if head.lstrip("+~") != "stages" or not below or below[0] not in stages:
        return key
    return ".".join([head, str(stages.index(below[0])), *below[1:]])


def plain(value: Any) -> Any:
    """Return a Python value as YAML knows it."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def upsert(override: str, folders: Iterable[Path], stages: Sequence[str] = ()) -> str:
    """Let a key be set that the YAML file leaves at its default: the models know which keys exist, not Hydra.

    Args:
        override: As it was written.
        folders: Those of configurations.
        stages: Names of stages that the file lists, for Hydra knows the items of a list by their numbers.
    """
    key, equals, value = override.partition("=")
    key = _numbered(key, stages)
    if key in _MAY_BE_A_PATH and value and value[0] not in "{[" and value != "null":
        key = _MAY_BE_A_PATH[key]  # beside it, further keys of the section may be set
    override = f"{key}{equals}{value}"
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


def find(name: str | Path) -> Path:
    """Return the file of a configuration, see :func:`compose`.

    Raises:
        ConfigError: There is none; names those that there are.
    """
    folders = [Path.cwd(), Path.cwd() / "config", shipped_configs()]
    file = str(name) if str(name).endswith(_EXTENSIONS) else f"{name}.yaml"
    for folder in folders:
        if (folder / file).is_file():
            return (folder / file).resolve()
    names = primary_names([folder for folder in folders if folder.is_dir()])
    close = nearest(Path(name).stem, names)
    hint = f"did you mean {close!r}? " if close else ""
    fix = f"{hint}Name a YAML file, or one of {', '.join(names)}."
    raise ConfigError([Problem(str(name), f"no such configuration (looked for {file} in {Path.cwd()}).", fix)])
