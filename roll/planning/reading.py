"""A configuration of any dialect or system as a checked native one."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from roll.config import ConfigError, ConfigWarning, RunConfig
from roll.config.composing import compose, from_mapping
from roll.config.loading import check, kind_of, load
from roll.convert import convert, read
from roll.convert.pipelines import config_of


def read_configuration(name: str, overrides: Sequence[str] = ()) -> tuple[RunConfig, list[str]]:
    """Return a checked configuration, and what a reader has to know about it.

    Args:
        name: What ``roll train`` takes: a preset, a YAML file in any dialect, the folder of a run; or what
            ``roll convert`` takes beside that: a file of overrides, a launch script, a YAML file with foreign keys.
        overrides: Further native keys, ``key=value``.

    Raises:
        ConfigError: It is none, or one that cannot be used even after it was converted.
    """
    path = Path(name)
    record = path / "config.yaml"
    foreign = path.is_file() and path.suffix not in (".yaml", ".yml")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if foreign:
            config = _converted(path, overrides)
        else:
            try:
                composed, found = compose(record if record.is_file() else name, overrides)
                kind = kind_of(composed)
                config = check(composed, kind=kind, source=str(found), overrides=overrides, command=overrides)
            except ConfigError:
                if not path.is_file():
                    raise
                try:
                    config = _converted(path, overrides)
                except ConfigError:
                    pass
                else:
                    return config, [str(item.message) for item in caught if issubclass(item.category, ConfigWarning)]
                raise
    return config, [str(item.message) for item in caught if issubclass(item.category, ConfigWarning)]


def _converted(path: Path, overrides: Sequence[str]) -> RunConfig:
    conversion = convert(read([path]))
    if conversion.problems:
        raise ConfigError(list(conversion.problems), source=str(path))
    composed = from_mapping(conversion.native)
    config: RunConfig = load(composed, kind=config_of(conversion.pipeline), overrides=list(overrides))
    return config
