"""What somebody meant who wrote a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(name: object, candidates: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the candidates that look most like ``name``, best first.

    Case, and the choice between ``-`` and ``_``, count as equal.

    Args:
        name: What was written.
        candidates: What would have worked.
        count: Return at most so many.
        cutoff: How much alike they must be, from 0 (anything) to 1 (the same).
    """
    by_folded: dict[str, str] = {}
    for candidate in candidates:
        by_folded.setdefault(_fold(candidate), candidate)
    return [by_folded[found] for found in difflib.get_close_matches(_fold(name), by_folded, count, cutoff)]


def nearest(name: object, candidates: Iterable[str]) -> str | None:
    """Return the candidate that looks most like ``name``, or ``None`` if none is close; see :func:`closest`."""
    return next(iter(closest(name, candidates)), None)


def did_you_mean(name: object, candidates: Iterable[str]) -> str:
    """Return advice for an unknown ``name``: the close ones of ``candidates`` as a question, and all of them.

    Returns:
        ``"Did you mean 'grpo'? Known: gae, gpg, grpo."``, without the question where nothing is close.
    """
    names = sorted(candidates)
    close = closest(name, names, count=3, cutoff=0.5)
    question = f"Did you mean {' or '.join(map(repr, close))}? " if close else ""
    return f"{question}Known: {', '.join(names)}." if names else "None is registered yet."


def _fold(name: object) -> str:
    return str(name).lower().replace("-", "_")
