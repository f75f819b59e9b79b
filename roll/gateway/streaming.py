"""Server-sent events, and a text in the pieces in which it is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """Return a server-sent event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode("utf-8", "replace")


def pieces(text: str) -> Iterator[str]:
    """Yield a text word by word, with the space before each."""
    start = 0
    for place in range(1, len(text)):
        if text[place].isspace() and not text[place - 1].isspace():
            yield text[start:place]
            start = place
    if text[start:]:
        yield text[start:]
