"""Keys taken out of nested mappings."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any


def without(tree: Mapping[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """Return ``tree`` without the keys at ``paths``."""
    left = copy.deepcopy(dict(tree))
    for path in paths:
        *parents, last = path.split(".")
        section: Any = left
        for parent in parents:
            section = section.get(parent) if isinstance(section, dict) else None
        if isinstance(section, dict):
            section.pop(last, None)
    return left
