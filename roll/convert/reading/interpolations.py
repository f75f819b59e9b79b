"""Interpolations of a configuration that was read: resolved here, but for variables of another machine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

from roll.config.composing import from_mapping
from roll.config.errors import ConfigError, Problem
from roll.config.resolving import resolve
from roll.convert.reading.assumed import assumed, filled, set_in
from roll.convert.removing import without

_VARIABLE: Final = re.compile(r"\$\{(?:oc\.)?env:\s*([A-Za-z_]\w*)\s*(,[^}]*)?\}")
_KEPT: Final = re.compile(r"⟦([A-Za-z_]\w*)⟧")
_HYDRA: Final = re.compile(r"\$\{(hydra|now):[^}]*\}")


def resolved(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``tree`` with every interpolation resolved.

    A variable of the environment that is not set here and has no default stays a variable (see :func:`as_written`).

    Raises:
        ConfigError: An interpolation names a key that is not there.
    """
    problems: list[Problem] = []
    relied = {path: value for path, value in assumed(tree).items() if not set_in(tree, path)}
    found = resolve(from_mapping(prepared(filled(tree, relied))), problems, leave_out=("hydra", "defaults"))
    if problems:
        raise ConfigError(problems)
    return without(found, relied)


def kept(name: str) -> str:
    """Return what stands for a variable that is not set here, until :func:`as_written`."""
    return f"⟦{name}⟧"


def without_kept(text: str) -> str:
    """Return a text in which variables that are not set here are empty."""
    return _KEPT.sub("", text)


def kept_names(value: Any) -> list[str]:
    """Return the variables that are not set here in a value, or in what it holds."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [name for item in value for name in kept_names(item)]
    return _KEPT.findall(value) if isinstance(value, str) else []


def as_written(value: Any) -> Any:
    """Return a value with the variables that were kept as interpolations again."""
    if isinstance(value, Mapping):
        return {key: as_written(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_written(item) for item in value]
    return _KEPT.sub(r"${oc.env:\1}", value) if isinstance(value, str) else value


def prepared(value: Any) -> Any:
    """Return a value in which variables that are not set here, and have no default, are kept (:func:`as_written`)."""
    if isinstance(value, Mapping):
        return {key: prepared(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [prepared(item) for item in value]
    if not isinstance(value, str):
        return value
    return _VARIABLE.sub(_variable, _HYDRA.sub(r"\1", value))


def _variable(match: re.Match[str]) -> str:
    name, default = match.groups()
    if default is not None or name in os.environ:
        return f"${{oc.env:{name}{default or ''}}}"
    return kept(name)
