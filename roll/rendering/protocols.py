"""What callers need of a renderer; :class:`roll.rendering.chat.ChatRenderer` is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

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

    def with_tools(self, schemas: Sequence[Mapping[str, Any]]) -> Renderer | None:
        """Return a renderer whose prompts describe tools; ``None`` where a template does not."""
        ...

    def written_call(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        """Return how the template writes the call of a tool, if it does."""
        ...

    def written_ids(self, text: str) -> list[int]:
        """Return the tokens of a text that an answer is made to begin with."""
        ...

    def role_problem(self, role: str) -> str | None:
        """Return why a message of ``role`` after a reply would not be shown as one; ``None`` where it is."""
        ...


def as_users(messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return messages in which what tools say is the user's, set off by tags.

    The user speaks once where tools and user speak one after the other: many templates refuse two such messages.
    """
    said: list[dict[str, str]] = []
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "tool":
            role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
        if said and said[-1]["role"] == role == "user":
            said[-1]["content"] += "\n" + content
        else:
            said.append({"role": role, "content": content})
    return said


def spoken(completion: Completion, decoder: Decoder) -> str:
    """Return what a completion says: its text, or that of its tokens."""
    return decoder.decode(completion.token_ids) if completion.text is None else completion.text
