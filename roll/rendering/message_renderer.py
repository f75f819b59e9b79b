"""The renderer of a policy that takes messages: there is no tokenizer here, and nobody counts tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class MessageRenderer:
    """Stands where a tokenizer and a :class:`roll.rendering.chat.ChatRenderer` stand for others; all is without tokens.

    Whoever asks for a completion gives the messages instead (``text_only``), the whole conversation every time.
    """

    text_only = True
    stop_token_ids: tuple[int, ...] = ()
    folds_system = False
    turn_problem: str | None = None

    def render_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return no tokens."""
        return []

    initial_ids = render_ids

    def next_ids(
        self,
        completion_ids: Sequence[int],
        new_messages: Sequence[Mapping[str, str]],
        history: Sequence[Mapping[str, str]] | None = None,
    ) -> list[int]:
        """Return no tokens."""
        return []

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return no tokens."""
        return []

    def decode(self, ids: Sequence[int]) -> str:
        """Return no text."""
        return ""

    def with_tools(self, schemas: Sequence[Mapping[str, Any]]) -> None:
        """Return nothing: tools are described in words."""

    def written_call(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Return nothing: calls are written as they are described."""

    def written_ids(self, text: str) -> list[int]:
        """Return no tokens: what a server answers cannot be begun here."""
        return []

    def role_problem(self, role: str) -> str | None:
        """Return why results of tools are the user's words: a server wants the names of calls, which a text has not."""
        return "a policy that takes messages has names for calls" if role == "tool" else None
