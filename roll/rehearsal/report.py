"""A rehearsal as text, for people."""

from __future__ import annotations

from collections.abc import Iterator

from roll.rehearsal.rehearsing import Rehearsal


def render_rehearsal(found: Rehearsal) -> str:
    """Return what was folded, what breaks, what nothing reads, what is wrong with rows, and the times."""
    return "\n".join(_lines(found))


def _lines(found: Rehearsal) -> Iterator[str]:
    yield "Folded onto this machine:"
    yield from (f"  {note}" for note in found.folded)
    if found.absent:
        yield "Not on this machine:"
        yield from (f"  {line}" for line in found.absent)
    for row in found.rows:
        yield f"{row.section}: {row.rows} rows, {row.bad} that will fail, {row.too_long} prompts too long."
        yield from (f"  {line}" for line in (*row.examples, *([row.error] if row.error else [])))
    if found.unread:
        yield "Keys that nothing read:"
        yield from (f"  {key}" for key in found.unread)
    yield "Seconds:"
    yield from (f"  {stage:<32} {seconds:8.2f}" for stage, seconds in found.seconds.items())
    for each in found.breaks:
        yield f"It breaks in: {each.stage}{f' ({each.where})' if each.where else ''}"
        yield f"  {each.message}"
    yield "Nothing was found that stops it." if found.is_sound else "Mend this before it costs anything."
