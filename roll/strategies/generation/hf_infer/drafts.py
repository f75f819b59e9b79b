"""Guesses at what comes next: what followed the same tokens the last time, in this sequence or another.

A guess costs some more tokens in a step that computes one anyway, and each that is right saves a step. It changes no
token: each is drawn as ever, and the first that is not the one that was guessed ends what the step yields. Known as
speculative decoding with n-grams (Fu et al. 2024, "Break the sequential dependency of LLM inference using lookahead
decoding") or prompt lookup.
"""

from __future__ import annotations

from collections.abc import Sequence

_LONGEST = 3
"""Of the runs of tokens that are looked up, longest first."""

_MOST_ENTRIES = 1 << 19


class Drafts:
    """What followed each run of up to three tokens the last time.

    Prompts and completions of all sequences are in one index, so that the answers of a group help each other.
    """

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], tuple[Sequence[int], int]] = {}

    def add(self, tokens: Sequence[int], start: int) -> None:
        """Remember what the tokens from ``start`` on followed.

        Args:
            tokens: A whole sequence, which may grow but not change; what is below 0 stands for a picture.
            start: The first token that was not remembered before.
        """
        if len(self._after) >= _MOST_ENTRIES:
            self._after.clear()
        for place in range(max(start, 1), len(tokens)):
            for length in range(1, min(_LONGEST, place) + 1):
                self._after[tuple(tokens[place - length : place])] = (tokens, place)

    def guess(self, tokens: Sequence[int], most: int) -> list[int]:
        """Return up to ``most`` tokens that may follow ``tokens``; none where nothing alike was seen."""
        for length in range(_LONGEST, 0, -1):
            found = self._after.get(tuple(tokens[-length:])) if length <= len(tokens) and most > 0 else None
            if found is not None:
                seen, place = found
                guessed = list(seen[place : place + most])
                picture = next((index for index, token in enumerate(guessed) if token < 0), len(guessed))
                return guessed[:picture]
        return []

    def clear(self) -> None:
        """Forget everything."""
        self._after.clear()
