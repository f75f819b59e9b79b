"""Spans: a piece of time with a name, as OpenTelemetry has them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

Attribute = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of time of a trace.

    Attributes:
        trace: Id of the trace, 128 bits, not 0; spans of several programs may have the same.
        number: Id of the span, 64 bits, not 0.
        name: What happened.
        begun: Unix seconds.
        ended: Unix seconds.
        parent: Id of the span that it is a part of; ``None`` for the first of a trace.
        attributes: What is known of it.
        error: Why it failed; ``None`` where it did not.
    """

    trace: int
    number: int
    name: str
    begun: float
    ended: float
    parent: int | None = None
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    error: str | None = None


def trace_id(*parts: object) -> int:
    """Return the id of the trace of something: the same for the same parts, in whatever program."""
    return _hashed(16, *parts)


def span_id(*parts: object) -> int:
    """Return the id of a span: the same for the same parts."""
    return _hashed(8, *parts)


def _hashed(size: int, *parts: object) -> int:
    digest = hashlib.blake2b("\0".join(map(repr, parts)).encode(errors="backslashreplace"), digest_size=size).digest()
    return int.from_bytes(digest) or 1
