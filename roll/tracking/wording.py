"""Durations and counts as people read them."""

from __future__ import annotations


def format_duration(seconds: float) -> str:
    """Return ``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def count_steps(number: int) -> str:
    """Return ``1 step`` or ``2 steps``."""
    return f"{number} step{'' if number == 1 else 's'}"
