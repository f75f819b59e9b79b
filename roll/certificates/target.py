"""Which environment is looked at: a tag, or a factory in a module."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import roll.envs
from roll.envs import Tag
from roll.envs.errors import EnvError


class TargetError(ValueError):
    """There is no such environment, or it cannot be made."""


@dataclass(frozen=True, slots=True)
class Target:
    """An environment by name.

    Attributes:
        name: A tag, or ``module:factory`` where the factory is a class or function that needs no argument.
        modules: Modules that register tags, imported first; from the working directory too.
    """

    name: str
    modules: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """An environment that can be made.

    Attributes:
        make: Returns a new one.
        tag: The tag, where the target is one.
        factory: ``module:name`` of the class or function.
    """

    make: Callable[[], Any]
    tag: Tag | None
    factory: str


def find(target: Target) -> Source:
    """Import what a target names.

    Raises:
        TargetError: If there is no such thing; the message says what there is.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    for module in target.modules:
        _import(module)
    if ":" not in target.name:
        try:
            tag = roll.envs.get_tag(target.name)
            made = roll.envs.get_env_class(tag.env_type)
        except (EnvError, ImportError) as error:
            raise TargetError(str(error)) from error
        return Source(lambda: roll.envs.make(tag), tag, f"{made.__module__}:{made.__qualname__}")
    module, _, attribute = target.name.partition(":")
    _import(module)
    try:
        factory = resolve_name(target.name)
    except AttributeError as error:
        raise TargetError(f"the module {module} has no {attribute!r}.") from error
    if not callable(factory):
        raise TargetError(f"{target.name} is {type(factory).__name__}: name a class or a function that makes one.")
    return Source(factory, None, target.name)


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except Exception as error:
        raise TargetError(
            f"cannot import {module}: {type(error).__name__}: {error}. Install it, or start from the folder that "
            f"holds it (this one is {Path.cwd()})."
        ) from error
