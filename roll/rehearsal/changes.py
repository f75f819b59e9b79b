"""What is changed of a configuration so that it can be rehearsed, and what was folded, as sentences."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roll.config import RunConfig
from roll.config.loading import load


@dataclass(slots=True)
class Folding:
    """What is changed for a rehearsal.

    Attributes:
        changes: Keys by their paths; ``None`` is ``null``.
        removed: Keys that are left out.
        notes: What was folded, as sentences.
    """

    changes: dict[str, Any] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def apply(self, config: RunConfig, output_dir: Path) -> RunConfig:
        """Return the configuration of the rehearsal.

        Raises:
            ConfigError: Its keys contradict each other.
        """
        data = config.model_dump(exclude_unset=True)
        for path in self.removed:
            _put(data, path, None, remove=True)
        for path, value in {**self.changes, "output_dir": output_dir}.items():
            _put(data, path, value)
        folded: RunConfig = load(data, kind=type(config), overrides={})
        return folded

    def touches(self, key: str) -> bool:
        """Tell whether a key, or a section that it is in, was changed: whether it would be read cannot be known."""
        return any(key == path or key.startswith(f"{path}.") for path in (*self.changes, *self.removed))


def _put(data: dict[str, Any], path: str, value: Any, *, remove: bool = False) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        below = data.get(parent)
        if not isinstance(below, dict):
            if remove:
                return
            below = data[parent] = {}
        data = below
    if remove:
        data.pop(last, None)
    else:
        data[last] = value
