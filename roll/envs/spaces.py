"""Text spaces."""

from __future__ import annotations

import copy
import functools
import string
from typing import Any

from gymnasium import spaces

_SAMPLED = string.ascii_letters + string.digits + " .,:<>/_-+\n"


class AnyText(spaces.Text):
    """Any text up to a length, whatever its characters.

    ``gymnasium.spaces.Text`` needs every character listed, which the responses of a language model cannot promise.
    Samples are short and drawn from letters, digits and some punctuation.

    Args:
        max_length: Longest text that belongs to the space, in characters.
        sample_length: Longest text that :meth:`sample` draws.
    """

    def __init__(self, max_length: int, sample_length: int = 64) -> None:
        super().__init__(min(sample_length, max_length), min_length=0, charset=_SAMPLED)
        self.longest = max_length

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a string of at most ``longest`` characters."""
        return isinstance(x, str) and len(x) <= self.longest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText) and other.longest == self.longest and super().__eq__(other)

    def __repr__(self) -> str:
        return f"AnyText({self.longest})"


def any_text() -> AnyText:
    """Return a space of texts up to a million characters; cheap, since an environment is made for every episode."""
    # What a space of text holds is never changed, except its random generator, which it has not got yet.
    return copy.copy(_any_text())


@functools.cache
def _any_text() -> AnyText:
    return AnyText(max_length=1 << 20)


def board_space(symbols: set[str], rows: int, columns: int) -> spaces.Text:
    """Return the space of boards of ``rows`` lines with ``columns`` symbols each."""
    longest = max(len(symbol) for symbol in symbols)
    charset = frozenset("".join(symbols)) | {"\n"}
    return spaces.Text(rows * (columns * longest + 1), min_length=0, charset=charset)
