"""A comparison as text, for people."""

from __future__ import annotations

from collections.abc import Iterator

from roll.differences.comparing import Comparison


def render_comparison(comparison: Comparison) -> str:
    """Return the causes in the order in which they show, each with its keys."""
    return "\n".join(_lines(comparison))


def _lines(comparison: Comparison) -> Iterator[str]:
    if not comparison.causes:
        yield "The runs are equal, bit for bit."
    for number, cause in enumerate(comparison.causes, start=1):
        yield f"{number}. {cause.difference.place} differs ({cause.difference.how})."
        for key, (first, second) in cause.keys.items():
            yield f"   because of {key}: {_shown(first)} and {_shown(second)}"
    if comparison.silent:
        yield f"Different, and without an effect in these steps: {', '.join(comparison.silent)}."
    yield f"{comparison.runs} runs on the toy."


def _shown(value: object) -> str:
    return "not set" if value is None else str(value)
