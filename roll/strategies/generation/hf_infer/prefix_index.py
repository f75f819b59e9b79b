"""Finds another sequence that starts with the same tokens, so that its keys and values can be copied.

The episodes of a group begin with the same prompt, and all episodes of a tag with the same system prompt.
"""

from __future__ import annotations

from typing import Generic, TypeVar

BLOCK = 32
"""Tokens per indexed block; shorter common prefixes are cheaper to compute than to look for."""

_MOST_ENTRIES = 65536

Owner = TypeVar("Owner")


class PrefixIndex(Generic[Owner]):
    """Maps the first 1, 2, 3, … blocks of a prompt to whoever had them first.

    Keys are chained hashes, so that a prompt costs time linear in its length. A hash is a hint: the user compares the
    tokens. Hashes of integer tuples do not depend on ``PYTHONHASHSEED``, so that runs are reproducible.
    """

    def __init__(self) -> None:
        self._owners: dict[int, Owner] = {}

    @staticmethod
    def keys(tokens: list[int]) -> list[int]:
        """Key of each leading run of whole blocks, shortest first; the last token never counts."""
        keys: list[int] = []
        key = 0
        for start in range(0, len(tokens) - BLOCK, BLOCK):
            key = hash((key, *tokens[start : start + BLOCK]))
            keys.append(key)
        return keys

    def owner(self, key: int) -> Owner | None:
        """Who has that prefix, as far as known."""
        return self._owners.get(key)

    def add(self, key: int, owner: Owner) -> None:
        """Make ``owner`` the one to ask for that prefix."""
        if len(self._owners) >= _MOST_ENTRIES:
            self._owners.clear()
        self._owners[key] = owner

    def clear(self) -> None:
        """Forget everything."""
        self._owners.clear()
