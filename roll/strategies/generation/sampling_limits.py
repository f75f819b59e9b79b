"""Sampling that an engine cannot do with exact log-probs: said before a run begins, and of every request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """A sampling parameter that an engine does not have.

    Attributes:
        key: Its name.
        message: What is wrong.
        fix: What to do.
    """

    key: str
    message: str
    fix: str


def check_limits(refusals: Iterable[Refusal], request_id: str) -> None:
    """Refuse a request that the engine cannot sample.

    Args:
        refusals: Everything in it that the engine cannot do.
        request_id: Of the request.

    Raises:
        ValueError: With the first of them.
    """
    for refusal in refusals:
        raise ValueError(f"request {request_id!r}: {refusal.message}; {refusal.fix}")
