"""Foreign keys that stand beside native ones, in sections that are native and below names that the user chose.

A guide of this kind writes its keys as paths of which a part may be ``*``, for any name: ``rewards.*.worker_cls``. The
same ``*`` in a native path stands for the same name.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from roll.config.base import ConfigModel
from roll.config.dialects.rows import Guide, Impossible, Look, Row, Sets
from roll.config.errors import FixableError
from roll.config.validation import model_at, valid_keys

ANY: Final = "*"
"""The part of a path that stands for any name."""


@dataclass(frozen=True, slots=True)
class Found:
    """One key of a guide in a configuration.

    Attributes:
        key: Its path as written.
        row: Its row, with names for every ``*``.
        value: Its value.
    """

    key: str
    row: Row
    value: Any


class LookBeside(Look):
    """What a conversion may know, where the ``*`` of paths are the names that its own key has there."""

    def __init__(self, look: Look, names: Sequence[str]) -> None:
        self.agentic, self.demonstrates = look.agentic, look.demonstrates
        self.names = tuple(names)
        self._look, self._kind = look, look._kind

    def __call__(self, key: str, default: Any = None) -> Any:
        """Return the value of another key of the guide, ``default`` where it is unset or null."""
        return self._look(filled(key, self.names), default)

    def native(self, path: str) -> Any:
        """Return the value of a native key that the user wrote, ``None`` where there is none."""
        return self._look.native(filled(path, self.names))


def filled(path: str, names: Sequence[str]) -> str:
    """Return ``path`` with ``names`` for its ``*``, in order."""
    following = iter(names)
    return ".".join(next(following, ANY) if part == ANY else part for part in path.split("."))


def take(guide: Guide, data: Mapping[str, Any], kind: type[ConfigModel]) -> tuple[dict[str, Any], list[Found]]:
    """Return ``data`` without the keys of ``guide``, and those keys.

    A native key is left where it is, and so is a section, unless its row makes something else of its value.

    Args:
        guide: A guide of keys beside native ones.
        data: Plain values; not changed.
        kind: The model whose keys are native.
    """
    left = copy.deepcopy(dict(data))
    given = copy.deepcopy(left)
    found: list[Found] = []

    def walk(section: dict[str, Any], path: tuple[str, ...], patterns: Sequence[tuple[str, ...]]) -> None:
        model = model_at(kind, path) if path else kind
        native = set(valid_keys(model)) if model is not None else set()
        for key in list(section):
            here = (*path, str(key))
            for pattern in _continued(guide, patterns, str(key)):
                row = guide.row(".".join(pattern))
                if row is None:
                    continue
                names = [name for name, part in zip(here, pattern, strict=True) if part == ANY]
                row = _named(row, names)
                may_stay = key in native or ".".join(here) in row.targets or isinstance(section[key], dict)
                if not may_stay or _is_changed(row, section[key], Look({}, given, kind)):
                    found.append(Found(".".join(here), row, section.pop(key)))
                    break
            else:
                if isinstance(section[key], dict):
                    was_empty, further = not section[key], _continued(guide, patterns, str(key))
                    walk(section[key], here, further)
                    if not section[key] and not was_empty and key not in native and further[0][-1] == key:
                        del section[key]

    walk(left, (), [()])
    return left, found


def _continued(guide: Guide, patterns: Sequence[tuple[str, ...]], key: str) -> list[tuple[str, ...]]:
    """Return the patterns that lead from ``patterns`` to ``key``, those of its own name first."""
    return [
        (*pattern, part)
        for part in (key, ANY)
        for pattern in patterns
        if part in (guide.below(".".join(pattern)) if pattern else guide.heads)
    ]


def _named(row: Row, names: Sequence[str]) -> Row:
    targets = tuple(filled(target, names) for target in row.targets)
    convert = None if row.convert is None else _converting(row.convert, names)
    return replace(row, native=targets, convert=convert)


def _converting(convert: Callable[[Any, Look], Any], names: Sequence[str]) -> Callable[[Any, Look], Any]:
    def named(value: Any, look: Look) -> Any:
        outcome = convert(value, LookBeside(look, names))
        if isinstance(outcome, Impossible):
            stands_in = {filled(path, names): item for path, item in outcome.stands_in.items()}
            return replace(outcome, stands_in=stands_in)
        if not isinstance(outcome, Sets):
            return outcome
        said, fills = ({filled(path, names): item for path, item in part.items()} for part in _parts(outcome))
        return replace(outcome, values=said, fills=fills)

    return named


def _parts(outcome: Sets) -> Iterator[Mapping[str, Any]]:
    yield outcome.values
    yield outcome.fills


def _is_changed(row: Row, value: Any, look: Look) -> bool:
    """Tell whether the row of a key makes something else of its value."""
    if row.convert is None:
        return True
    try:
        outcome = row.convert(value, look)
    except FixableError:
        return True
    return outcome is not value
