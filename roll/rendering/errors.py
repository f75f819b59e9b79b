"""What is wrong with a chat template, or with a conversation that it is to render."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from roll.config.errors import FixableError


class ChatTemplateError(FixableError):
    """There is no chat template, or no conversation can be held with it."""


class ConversationError(FixableError):
    """A chat template refuses a conversation, or a message has no tokens."""

    @classmethod
    def of(cls, messages: Sequence[Mapping[str, str]], cause: Exception) -> ConversationError:
        """Return what to tell when a template raised ``cause``."""
        roles = ", ".join(message["role"] for message in messages)
        reason = " ".join(str(cause).split()) or type(cause).__name__
        return cls(
            f"the chat template refuses a conversation of the roles {roles}: {reason}",
            "change the messages, or set another `template`.",
        )
