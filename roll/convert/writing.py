"""A conversion as a YAML file: native keys, each with the foreign key that it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from roll.config.written import scalar
from roll.convert.converting import Conversion
from roll.convert.reading.interpolations import as_written


def to_native_yaml(conversion: Conversion) -> str:
    """Return the native keys of a conversion as YAML.

    Behind a key stands where it comes from; at the end, as comments, the foreign keys that set nothing, and why.
    """
    came_from: dict[str, list[str]] = {}
    for key in conversion.keys:
        for path in key.to:
            if path != key.key:
                came_from.setdefault(path, []).append(key.key)
    lines = [f"# Converted from {conversion.system}; behind each key the one that it comes from."]
    lines += (as_written(line) for line in _section(conversion.native, (), came_from))
    lines += _remarks(conversion)
    return "\n".join(lines) + "\n"


def _section(section: Mapping[str, Any], above: tuple[str, ...], came_from: Mapping[str, list[str]]) -> Iterator[str]:
    indent = "  " * len(above)
    for name, value in section.items():
        path = (*above, str(name))
        sources = came_from.get(".".join(path), ())
        remark = f"  # {', '.join(sources)}" if sources else ""
        if isinstance(value, Mapping) and value:
            yield f"{indent}{scalar(str(name))}:{remark}"
            yield from _section(value, path, came_from)
        else:
            yield f"{indent}{scalar(str(name))}: {scalar(value)}{remark}"


def _remarks(conversion: Conversion) -> Iterator[str]:
    for state, title in (("no_effect", "Without effect here:"), ("impossible", "Not possible here:")):
        keys = [key for key in conversion.keys if key.state == state]
        if keys:
            yield ""
            yield f"# {title}"
        for key in keys:
            yield f"#   {key.key}: {' '.join(key.why.split())}"
