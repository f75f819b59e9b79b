"""What a conversion came to, for people and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from roll.config.dialects import State
from roll.convert.converting import Conversion
from roll.convert.reading.interpolations import as_written

_TITLES: Final[Mapping[State, str]] = {
    "translated": "Translated",
    "no_effect": "No effect here",
    "impossible": "Not possible here",
}


def as_json(conversion: Conversion) -> dict[str, Any]:
    """Return a conversion as plain values.

    Returns:
        ``ok``, ``system``, ``pipeline``, ``native``, ``keys`` (each with ``key``, ``state``, ``to`` and ``why``),
        ``problems`` (each with ``key``, ``message`` and ``fix``) and ``notes``.
    """
    return {
        "ok": conversion.ok,
        "system": conversion.system,
        "pipeline": conversion.pipeline,
        "native": as_written(conversion.native),
        "keys": [
            {"key": key.key, "state": key.state, "to": ", ".join(key.to) or None, "why": key.why or None}
            for key in conversion.keys
        ],
        "problems": [
            {"key": problem.path, "message": problem.message, "fix": problem.fix} for problem in conversion.problems
        ],
        "notes": list(conversion.notes),
    }


def render_report(conversion: Conversion) -> str:
    """Return a conversion as text: every foreign key by what became of it, and what has to be mended."""
    return "\n".join(_lines(conversion))


def _lines(conversion: Conversion) -> Iterator[str]:
    width = min(max((len(key.key) for key in conversion.keys), default=0), 60)
    for state, title in _TITLES.items():
        keys = [key for key in conversion.keys if key.state == state]
        if keys:
            yield f"{title} ({len(keys)}):"
        for key in keys:
            to = f" → {', '.join(key.to)}" if key.to and key.to != (key.key,) else ""
            yield f"  {key.key:<{width}}{to}{f'  ({key.why})' if key.why and to else f'  {key.why}' if key.why else ''}"
    for note in conversion.notes:
        yield f"Note: {note}"
    for problem in conversion.problems:
        yield f"Problem: {problem}"
    counts = Counter(key.state for key in conversion.keys)
    told = ", ".join(f"{counts[state]} {title.lower()}" for state, title in _TITLES.items())
    verdict = "can be used" if conversion.ok else f"cannot be used yet: {len(conversion.problems)} to mend"
    yield f"{conversion.system} → pipeline {conversion.pipeline}: {told}. It {verdict}."
