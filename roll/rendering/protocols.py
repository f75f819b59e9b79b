"""What callers need of a renderer; :class:`roll.rendering.chat.ChatRenderer` is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from roll.generation import Completion


class Decoder(Protocol):
    """Tokens back to text."""

    stop_token_ids: tuple[int, ...]
    text_only: bool
    """Whether there are no tokens: completions are asked for by messages, and answered by text."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of sampled tokens without their stop token."""
        ...


class Renderer(Decoder, Protocol):
    """Messages to tokens and back."""

    def render_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the whole conversation with generation prompt."""
        ...

    def next_ids(
        self,
        completion_ids: Sequence[int],
        new_messages: Sequence[Mapping[str, str]],
        history: Sequence[Mapping[str, str]] | None = None,
    ) -> list[int] | None:
        """Return the tokens that follow prompt and completion, or ``None`` to render the conversation anew.

        ``history`` is the conversation before; it is given once a conversation was rendered anew.
        """
        ...


def spoken(completion: Completion, decoder: Decoder) -> str:
    """Return what a completion says: its text, or that of its tokens."""
    return decoder.decode(completion.token_ids) if completion.text is None else completion.text
