"""What a key means: of ours, from the models that the reference is made of; of another guide, from its rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from roll.common.spelling import closest
from roll.config.base import ConfigModel
from roll.config.dialects.guides import GUIDES
from roll.config.kinds import PIPELINES
from roll.config.reference import describe
from roll.config.validation import model_at, sections


@dataclass(frozen=True, slots=True)
class KeyMeaning:
    """A key of ours.

    Attributes:
        path: Where it stands.
        pipelines: The kinds of run that have it.
        type: What it takes.
        default: Its value where it is not set; empty for a section.
        meaning: A sentence or two.
        keys: The keys below it, where it is a section.
    """

    path: str
    pipelines: tuple[str, ...]
    type: str
    default: str
    meaning: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A key of another guide.

    Attributes:
        path: As that guide spells it.
        guide: Whose it is.
        targets: The keys of ours that it sets; none where it has no effect here.
        note: What is not quite the same, or why it has no effect.
    """

    path: str
    guide: str
    targets: tuple[str, ...]
    note: str


def explain(key: str) -> list[KeyMeaning | ForeignKey]:
    """Return what a key means, at every place that has it.

    Args:
        key: A path, ``train_env_manager.group_size``; or the last part of one, ``group_size``, wherever it is.
    """
    paths = [key] if "." in key else [key, *_paths_ending_in(key)]
    found = [meaning for path in dict.fromkeys(paths) if (meaning := _meaning(path)) is not None]
    foreign = [
        ForeignKey(row.key, guide.name, tuple(row.targets), row.note)
        for guide in GUIDES
        for row in guide.rows
        if row.key == key or ("." not in key and row.key.endswith(f".{key}"))
    ]
    return [*found, *foreign]


def near(key: str) -> list[str]:
    """Return the keys that are spelled most like one that there is not."""
    known: dict[str, str] = {}
    for path in sorted(_all_paths(), key=lambda path: path.count(".")):
        known.setdefault(path, path)
        known.setdefault(path.rpartition(".")[2], path)
    return list(dict.fromkeys(known[name] for name in closest(key, list(known), count=3, cutoff=0.6)))


def completions() -> dict[str, tuple[str, list[str]]]:
    """Return every key that has a value and a place of its own: its default, and its values where they are few."""
    found: dict[str, tuple[str, list[str]]] = {}
    for path in _all_paths():
        meaning = None if "<" in path else _meaning(path)
        if meaning is not None and not meaning.keys:
            values = ["true", "false"] if "boolean" in meaning.type else re.findall(r"`([^`]+)`", meaning.type)
            found[path] = (meaning.default, values)
    return found


def _meaning(path: str) -> KeyMeaning | None:
    *above, name = path.split(".")
    holders: dict[str, type[ConfigModel]] = {}
    for pipeline in PIPELINES:
        model = model_at(PIPELINES.get(pipeline).config, above)
        if model is not None and model.key_aliases.get(name, name) in model.model_fields:
            holders[pipeline] = model
    if not holders:
        return None
    pipeline, model = next(iter(holders.items()))
    own = model.key_aliases.get(name, name)
    cells = (cell.replace("\\|", "|") for cell in describe(model, own, model.model_fields[own]))
    below = model_at(PIPELINES.get(pipeline).config, path.split("."))
    kind, default, meaning = cells
    if own != name:
        meaning = f"Another name of {'.'.join([*above, own])}. {meaning}"
    return KeyMeaning(path, tuple(holders), kind, default, meaning, tuple(below.model_fields) if below else ())


def _paths_ending_in(name: str) -> list[str]:
    return [path for path in _all_paths() if path.rpartition(".")[2] == name]


def _all_paths() -> Iterator[str]:
    """Yield the path of every key that has a place of its own, which a key of a tag or a domain has not."""
    seen = set()
    for pipeline in PIPELINES:
        for prefix, model in sections(PIPELINES.get(pipeline).config):
            for name in model.model_fields:
                path = f"{prefix}.{name}" if prefix else name
                if path not in seen:
                    seen.add(path)
                    yield path
