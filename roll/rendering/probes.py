"""Probe conversations: what a chat template is tried on before its bridges are trusted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

REPLY: Final = "Aq7reply"
USER: Final[dict[str, str]] = {"role": "user", "content": "Uq7first"}
SYSTEM: Final[dict[str, str]] = {"role": "system", "content": "Sq7rules"}

OBSERVATIONS: Final = ("#.@ $", "  indented\n\nlines \n", "{x} {{ y }} [INST] <b>&amp; {% z %} <answer>", "")
"""What environments, users and tools may say."""

THOUGHTFUL: Final = "<think>\nplan\n</think>\n\n<answer>Up</answer>"

REPLIES: Final = (REPLY, THOUGHTFUL, " padded \n", "")
"""What an assistant may say."""


def new_messages(roles: Sequence[str], content: str) -> list[dict[str, str]]:
    """Return one message of each role, all with the same content."""
    return [{"role": role, "content": content} for role in roles]


def histories(head: Sequence[Mapping[str, str]], roles: tuple[str, ...]) -> Iterator[list[Mapping[str, str]]]:
    """Yield conversations that end where the assistant is to speak, of up to three turns.

    Args:
        head: What they begin with.
        roles: Of the messages between two turns of the assistant; where they are not the user's, turns of the user
            stand before and behind.
    """
    history = [*head]
    yield history
    turns = [roles, roles] if roles == ("user",) else [roles, ("user",), roles]
    for reply, turn in zip((REPLY, THOUGHTFUL, REPLY), turns, strict=False):
        history = [*history, {"role": "assistant", "content": reply}, *new_messages(turn, "next {0}")]
        yield history
