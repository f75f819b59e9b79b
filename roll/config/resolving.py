"""Interpolations: every value written out, and every one that leads nowhere or back to itself reported."""

from __future__ import annotations

import re
from collections.abc import Collection
from math import isfinite
from typing import Any, Final

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from roll.common.spelling import nearest
from roll.config.errors import Problem
from roll.config.yaml_files import MOST_VALUES

_WHOLE: Final = re.compile(r"\$\{[^{}]*(\{[^{}]*\}[^{}]*)*\}")
"""One interpolation and nothing else, perhaps with another inside."""

_VARIABLES: Final = "system_envs"
"""The section of which every value goes to the environment again, and is text there."""

_TRUTH: Final = {"true": True, "false": False}
_RESOLVERS = ("oc.env", "oc.select", "oc.decode", "oc.create", "oc.deprecated", "oc.dict.keys", "oc.dict.values")


def resolve(
    config: DictConfig, problems: list[Problem], leave_out: Collection[str] = (), texts: dict[str, str] | None = None
) -> dict[str, Any]:
    """Return plain values; interpolations that lead nowhere, and every ``???``, are recorded instead of stopping.

    Variables of the environment are text. Where a value is one interpolation and gives a number, or a truth value, as
    text, it is that number.

    Args:
        config: A composed configuration.
        problems: Where problems are added.
        leave_out: Top-level keys that are not looked at.
        texts: Where such texts are added as they were, by path: some keys want text, whatever it looks like.
    """
    found: dict[str, Any] = _Resolver(problems, leave_out, {} if texts is None else texts).resolve(config, ())
    return found


class _Resolver:
    def __init__(self, problems: list[Problem], leave_out: Collection[str], texts: dict[str, str]) -> None:
        self._problems = problems
        self._texts = texts
        self._leave_out = leave_out
        self._values = 0

    def resolve(self, node: Any, path: tuple[str, ...]) -> Any:
        """Return the plain value of ``node``.

        Args:
            node: A section, a list or a value.
            path: The keys that lead to it.
        """
        self._values += 1
        if not isinstance(node, DictConfig | ListConfig):
            return node
        is_mapping = isinstance(node, DictConfig)
        resolved: dict[Any, Any] = {}
        for key in list(node.keys()) if is_mapping else range(len(node)):
            here = (*path, str(key))
            if (not path and key in self._leave_out) or self._values > MOST_VALUES:
                continue
            try:
                if OmegaConf.is_missing(node, key):
                    message = "a value is required."
                    self._problems.append(Problem(".".join(here), message, "give it, for ??? stands for nothing."))
                    continue
                value = node[key]
            except OmegaConfBaseException as error:
                self._problems.append(_interpolation_problem(here, _raw(node, key), error, node))
                continue
            is_text = isinstance(value, str) and OmegaConf.is_interpolation(node, key) and _VARIABLES not in here
            if is_text and _WHOLE.fullmatch(_raw(node, key)):
                value = self._read(value, here)
            resolved[key] = self.resolve(value, here)
            if self._values == MOST_VALUES + 1:
                message = f"its interpolations stand for more than {MOST_VALUES:,} values."
                self._problems.append(Problem(".".join(here), message, "write out what is meant."))
                self._values += 1
        return resolved if is_mapping else list(resolved.values())

    def _read(self, text: str, path: tuple[str, ...]) -> str | int | float | bool:
        """Return what an interpolation gave as text."""
        value = value_in(text)
        if not isinstance(value, str):
            self._texts[".".join(path)] = text
        return value


def value_in(text: str) -> str | int | float | bool:
    """Return the finite number or truth value that a text is, the text itself where it is neither."""
    if text.lower() in _TRUTH:
        return _TRUTH[text.lower()]
    for read in (int, float):
        try:
            number = read(text)
        except ValueError:
            continue
        return number if isfinite(number) and text.isascii() and "_" not in text else text
    return text


def _raw(node: DictConfig | ListConfig, key: Any) -> Any:
    raw: Any = OmegaConf.to_container(node, resolve=False)
    return raw[key]


def _interpolation_problem(path: tuple[str, ...], raw: Any, error: Exception, node: DictConfig | ListConfig) -> Problem:
    message = str(error).splitlines()[0].rstrip(".") + "."
    fix = "define the key that is interpolated, or write the value itself."
    root = node._get_root()
    missing = re.search(r"\$\{([\w.]+)\}", str(raw))
    resolver = re.search(r"\$\{\s*([\w.]+)\s*:([^,}]*)", str(raw))
    if "Recursive interpolation" in message or "Interpolation to parent" in message:
        message, fix = "it leads back to itself.", "write the value itself in one of the places."
    elif resolver and resolver[1] == "oc.env":
        message = f"the environment variable {resolver[2].strip()} is not set."
        fix = f"set it, or give a value for where it is not: ${{oc.env:{resolver[2].strip()},value}}."
    elif resolver and "Unsupported interpolation type" in message:
        close = nearest(resolver[1], _RESOLVERS)
        fix = f"use {close if close else 'one of ' + ', '.join(_RESOLVERS)}, or write the value itself."
    elif missing and isinstance(root, DictConfig):
        head = missing[1].split(".")[0]
        close_key = nearest(head, [str(key) for key in root]) if head not in root else None
        fix = f"did you mean ${{{close_key}}}?" if close_key else f"define {missing[1]}, or write the value itself."
        if head in ("custom_env", "agent_template") or head.startswith("deepspeed_"):
            file = head if head.startswith("deepspeed_") else "envs"
            fix = f"add '- ../config/{file}@_here_' to the defaults list, or define {missing[1]}."
    return Problem(".".join(path), message, fix, raw)
