"""A checked configuration as a file: every key with its value and where that came from, to read and to load again."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from roll.config.base import ConfigModel
from roll.config.run import RunConfig
from roll.config.staged import Stage

HIDDEN: Final = "***"

_SECRET: Final = re.compile(
    r"(^|[_-])(api_?key|access_?key|secret(_?key)?|token|password|passwd|credentials?|authorization)$", re.IGNORECASE
)
_NO_SECRET: Final = re.compile(r"(^|_)(bos|eos|pad|unk|sep|cls|mask|image|stop|chat)_token$", re.IGNORECASE)
_CREDENTIALS: Final = re.compile(r"://[^/\s:@]*:[^/\s@]+@")

OF_THE_SITTING: Final = ("output_dir", "progress", "resume_from_checkpoint")
"""Keys that say where and how to continue, not what the run is."""


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the file: its text, where its value came from, and whether it is more than a comment."""

    text: str
    origin: str
    live: bool
    depth: int


def to_yaml(config: RunConfig) -> str:
    """Return every key of ``config``. Loaded again, the text gives an equal configuration.

    Keys that were not set are comments that show their defaults: some keys mean something else where they are not set.
    So are keys with secrets, whose values are hidden.
    """
    lines = [_shown(line) for line in _section(config, (), config, live=True)]
    return "\n".join(lines) + "\n"


def to_mapping(config: RunConfig) -> dict[str, Any]:
    """Return every key of ``config``, defaults too, as plain values; secrets are hidden."""
    return {name: _plain(name, value) for name, value, _ in _keys(config)}


def flat(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of nested sections by their key paths."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            found |= {f"{key}.{path}": item for path, item in flat(value).items()}
        else:
            found[str(key)] = value
    return found


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return how two configurations differ, both as :func:`to_mapping` gives them: ``key: old → new``."""
    old, new = flat(before), flat(after)
    keys = [key for key in dict.fromkeys((*new, *old)) if key.split(".")[0] not in OF_THE_SITTING]
    nothing = object()
    return [
        f"{key}: {_or_none(old, key)} → {_or_none(new, key)}"
        for key in keys
        if old.get(key, nothing) != new.get(key, nothing)
    ]


def without_secrets(words: Sequence[str], config: RunConfig) -> list[str]:
    """Return the words of a command line with the secrets of ``config`` hidden."""
    secrets = sorted(set(_secrets(config)), key=len, reverse=True)
    hidden = []
    for word in words:
        for secret in secrets:
            word = word.replace(secret, HIDDEN)
        hidden.append(_CREDENTIALS.sub(f"://{HIDDEN}@", word))
    return hidden


def _keys(model: ConfigModel) -> Iterator[tuple[str, Any, bool]]:
    """Yield the keys of a section, their values, and whether they were set; of a stage, those of its run too."""
    for name in type(model).model_fields:
        # Unset, the name would be that of the file.
        is_set = name in model.model_fields_set or (name == "exp_name" and isinstance(model, RunConfig))
        yield name, getattr(model, name), is_set
    if isinstance(model, Stage):
        yield from (each for each in _keys(model.config) if each[0] not in model.of_the_whole)


def _section(
    model: ConfigModel, path: tuple[str, ...], config: RunConfig, *, live: bool, depth: int = 0
) -> Iterator[_Line]:
    for name, value, is_set in _keys(model):
        yield from _entry(name, value, (*path, name), config, live=live and is_set, depth=depth)


def _entry(
    key: Any, value: Any, path: tuple[str, ...], config: RunConfig, *, live: bool, depth: int = 0
) -> Iterator[_Line]:
    origin = config.origins.of(path) if live else "default"
    name = scalar(key)
    if _is_secret(str(key), value):
        place = origin.partition(" ")[0] if live and ".yaml" in origin else ""
        yield _Line(f"{name}: {scalar(HIDDEN)}", f"hidden{f', {place}' if place else ''}", False, depth)
        return
    if isinstance(value, Stage):
        # Its keys are those of a configuration by itself, which knows where they came from.
        below = list(_section(value, (), value.config, live=live, depth=depth + 1))
    elif isinstance(value, ConfigModel):
        below = list(_section(value, path, config, live=live, depth=depth + 1))
    elif isinstance(value, Mapping):
        below = [
            line for k, v in value.items() for line in _entry(k, v, (*path, str(k)), config, live=live, depth=depth + 1)
        ]
    else:
        yield _Line(f"{name}: {scalar(value)}", origin, live, depth)
        return
    holds = any(line.live for line in below)
    yield _Line(f"{name}:" if below and (holds or not live) else f"{name}: {{}}", "" if holds else origin, live, depth)
    yield from below


def _shown(line: _Line) -> str:
    indent = "  " * line.depth
    text = f"{indent}{line.text}" if line.live else f"# {indent}{line.text}"
    return f"{text}  # {line.origin}" if line.origin and line.origin != "default" else text


def _plain(name: str, value: Any) -> Any:
    if _is_secret(name, value):
        return HIDDEN
    if isinstance(value, ConfigModel):
        return {key: _plain(key, item) for key, item, _ in _keys(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(str(key), item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain("", item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _is_secret(name: str, value: Any) -> bool:
    if not isinstance(value, str) or not value:
        return False
    return bool((_SECRET.search(name) and not _NO_SECRET.search(name)) or _CREDENTIALS.search(value))


def _secrets(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, ConfigModel):
        for key, item, _ in _keys(value):
            yield from _secrets(item, key)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _secrets(item, str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secrets(item)
    elif _is_secret(name, value):
        yield value


def scalar(value: Any) -> str:
    """Return a value as YAML on one line, as OmegaConf reads it."""
    if isinstance(value, ConfigModel):
        return scalar({name: item for name, item, is_set in _keys(value) if is_set})
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar(key)}: {scalar(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(scalar(item) for item in value) + "]"
    plain = str(value) if isinstance(value, Path) else value
    if isinstance(plain, str | int | None):
        return _dumped_once(plain)
    return _dumped(plain)


def _dumped(plain: Any) -> str:
    if isinstance(plain, str):
        # What interpolates was filled in when the configuration was loaded: what is left is meant literally.
        plain = re.sub(r"(\\*)\$\{", lambda found: found.group(1) * 2 + r"\${", plain)
        if not plain.isprintable() or _is_number(plain):
            return yaml.safe_dump(plain, default_style='"', width=float("inf"), allow_unicode=True).strip()
    # In a list, so that what would be something else within a list is quoted.
    return yaml.safe_dump([plain], default_flow_style=True, width=float("inf"), allow_unicode=True).strip()[1:-1]


# A configuration has a thousand values, most of them a few times, and each takes 0.3 ms. Not for floats: -0.0 is 0.0.
_dumped_once = functools.lru_cache(4096, typed=True)(_dumped)


def _is_number(text: str) -> bool:
    """Tell whether OmegaConf may take ``text`` for a number: it reads more of them than YAML 1.1 does."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _or_none(data: Mapping[str, Any], key: str) -> str:
    return scalar(data[key]) if key in data else "(none)"
