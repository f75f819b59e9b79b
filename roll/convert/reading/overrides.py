"""A file of overrides: a program's name in the first line, then one ``key=value`` a line, in Hydra's grammar."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import yaml

from roll.config.errors import ConfigError, Problem
from roll.convert.foreign import Foreign

_COMMENT: Final = "#"


def read_overrides(path: Path) -> Foreign:
    """Return the keys that a file of overrides sets.

    Raises:
        ConfigError: A line is neither the program, an override nor a comment.
    """
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    words = [(number, line) for number, line in enumerate(lines, 1) if line and not line.startswith(_COMMENT)]
    program = words.pop(0)[1] if words and "=" not in words[0][1] else ""
    wrong = [
        Problem(f"line {number}", "this is no override.", "write key=value.", line)
        for number, line in words
        if not is_override(line)
    ]
    if wrong:
        raise ConfigError(wrong, source=str(path))
    return Foreign(tree_of(line for _, line in words), path, program.split()[-1] if program else "")


def is_override(word: str) -> bool:
    """Tell whether ``word`` sets or removes a key."""
    return word.startswith("~") or bool(word.partition("=")[0].lstrip("+").strip() and "=" in word)


def tree_of(overrides: Iterable[str], base: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return what overrides make of ``base``, in the order given: the later wins, ``~key`` removes.

    Args:
        overrides: ``key=value``, ``+key=value``, ``++key=value`` or ``~key``.
        base: The keys before; not changed.
    """
    tree: dict[str, Any] = copy.deepcopy(base) if base is not None else {}
    for override in overrides:
        key, _, text = override.partition("=")
        *parents, last = key.lstrip("+~").strip().split(".")
        section = tree
        for parent in parents:
            inner = section.get(parent)
            if not isinstance(inner, dict):
                # What was a value, such as the name of a group's file (engine=fsdp), has keys of its own now.
                inner = section[parent] = {}
            section = inner
        if override.startswith("~"):
            section.pop(last, None)
        elif not isinstance(section.get(last), dict) or isinstance(value_of(text), dict):
            section[last] = value_of(text)
    return tree


def value_of(text: str) -> Any:
    """Return the value of an override: Hydra's grammar, and where that refuses, YAML's, and else the text itself."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    text = text.strip()
    if not text:
        return ""
    try:
        value = OverridesParser.create().parse_override(f"key={text}").value()
        return _plain(value)
    except HydraException:
        pass
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _plain(value: Any) -> Any:
    """Return a parsed value in plain types: quoted texts as text."""
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return getattr(value, "text", value)
