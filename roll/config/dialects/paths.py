"""Values of nested mappings by dotted paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def value_at(data: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path, ``None`` where there is none."""
    value: Any = data
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def put(data: dict[str, Any], path: str, value: Any) -> None:
    """Write a value at a dotted path, unless something that is no section stands in its way."""
    *parents, last = path.split(".")
    for key in parents:
        inner = data.get(key)
        if inner is None:
            inner = data[key] = {}
        if not isinstance(inner, dict):
            # What the user wrote there is no section: the validation says so.
            return
        data = inner
    data[last] = value
