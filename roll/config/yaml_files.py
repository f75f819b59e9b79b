"""YAML files checked before they are composed: text, structure, size, and defaults lists that lead in circles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any, Final

import yaml
from omegaconf import OmegaConf

from roll.config.errors import ConfigError, Problem
from roll.config.sources import entries_of, nodes, shown_path

MOST_VALUES: Final = 20_000
"""Values that a file may stand for once its aliases are written out; the longest real ones have a few hundred."""

_DEFAULTS_FIX: Final = "write file names, such as `defaults: [sokoban, _self_]`."


def require_sound_files(primary: Path, folders: Sequence[Path]) -> None:
    """Check a configuration file and those that its defaults list names.

    Args:
        primary: The file.
        folders: Where files are looked for.

    Raises:
        ConfigError: A file cannot be read as a configuration, or builds on itself.
    """
    _check_from(primary, folders, (), set())


def _check_from(path: Path, folders: Sequence[Path], above: tuple[Path, ...], done: set[Path]) -> None:
    chain = (*above, path)
    if path in above:
        names = " → ".join(each.name for each in chain[above.index(path) :])
        raise _error(path, f"its defaults list leads back to itself: {names}.", "remove one of these entries.")
    if path in done:
        return
    node = _structure(path)
    for name in [] if node is None else entries_of(node):
        for folder in dict.fromkeys((path.parent, *folders)):
            # Hydra looks in the folder of the file that names it, then from the top of each of its folders.
            found = folder / f"{name.removeprefix('/').removesuffix('.yaml')}.yaml"
            if found.is_file():
                _check_from(found.resolve(), folders, chain, done)
                break
    done.add(path)


def _structure(path: Path) -> yaml.MappingNode | None:
    """Return what a file holds, ``None`` if it is empty, and make sure that it can be loaded."""
    try:
        text = path.read_bytes().decode("utf-8")
        node = nodes(text)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        message = f"byte {error.object[error.start]:#04x} in line {line} is no UTF-8 text."
        raise _error(path, message, "save the file with the encoding UTF-8.") from error
    except yaml.YAMLError as error:
        raise _not_yaml(path, error) from error
    except RecursionError as error:
        raise _error(path, "lists or sections are nested too deeply.", "take out some levels.") from error
    if node is None:
        return None
    if not isinstance(node, yaml.MappingNode):
        found = "a list" if isinstance(node, yaml.SequenceNode) else f"the single value {node.value!r}"
        raise _error(path, f"it holds {found}.", "a configuration is a mapping: lines of `key: value`.")
    if _values(node, {}, frozenset()) > MOST_VALUES:
        message = f"its aliases (`*name`) stand for more than {MOST_VALUES:,} values, or for themselves."
        raise _error(path, message, "write out what is meant.")
    try:
        content = _content(text)
    except yaml.YAMLError as error:
        raise _not_yaml(path, error) from error
    except Exception as error:  # OmegaConf knows fewer kinds of keys and values than YAML, and says so in many ways.
        message = f"it holds what a configuration cannot: {_sentence(error)}"
        raise _error(path, message, "use text as keys, and text, numbers, true, false or null as values.") from error
    _check_defaults(path, content)
    return node


@lru_cache(maxsize=128)
def _content(text: str) -> Any:
    """Return what Hydra will make of YAML; nobody may change it."""
    return OmegaConf.to_container(OmegaConf.load(StringIO(text)), resolve=False)


def _values(node: yaml.Node, known: dict[int, int], above: frozenset[int]) -> int:
    """Return how many values a node stands for with its aliases written out."""
    if id(node) in above:
        return MOST_VALUES + 1
    if id(node) not in known:
        inside: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            inside = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            inside = list(node.value)
        here = above | {id(node)}
        known[id(node)] = 1 + sum(_values(part, known, here) for part in inside)
    return known[id(node)]


def _check_defaults(path: Path, content: Any) -> None:
    entries = content.get("defaults", []) if isinstance(content, dict) else []
    if entries is None:
        return
    if not isinstance(entries, list):
        raise _error(path, f"`defaults` is no list (found {entries!r}).", _DEFAULTS_FIX)
    for entry in entries:
        options = list(entry.values()) if isinstance(entry, dict) else [entry]
        allowed = str if isinstance(entry, str) else (str, list, type(None))
        if len(options) != 1 or not isinstance(options[0], allowed):
            raise _error(path, f"`defaults` has an entry that names no file: {entry!r}.", _DEFAULTS_FIX)


def _not_yaml(path: Path, error: yaml.YAMLError) -> ConfigError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    place = None if mark is None else f"{shown_path(path)}:{mark.line + 1}"
    fix = "correct the line; look for a bracket or quote that is not closed, a tab, or a `:` that wants quotes."
    problem = Problem(path.name, f"is not valid YAML: {_sentence(error)}", fix, source=place)
    return ConfigError([problem], source=shown_path(path))


def _error(path: Path, message: str, fix: str) -> ConfigError:
    return ConfigError([Problem(path.name, message, fix, source=shown_path(path))], source=shown_path(path))


def _sentence(error: Exception) -> str:
    text = getattr(error, "problem", None) or str(error).partition("\n")[0] or type(error).__name__
    return " ".join(str(text).split()).rstrip(".") + "."
