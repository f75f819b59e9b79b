"""Answers as a reward model reads them: which tokens, and behind which of them it says what an answer is worth.

A model says at a token what the tokens up to and including it are worth. Trainers read such a number as the value of
the state *before* a token, so whatever is scored has a token behind it that is marked: the next one, or at the end one
that is appended and that no score has seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roll.rendering.chat import ChatRenderer
from roll.rendering.encoding import THINKING_TAGS
from roll.rendering.supervised import TokenSequence, guarded


def whole_conversation(
    renderer: ChatRenderer, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None
) -> list[int]:
    """Return the token ids of a conversation that is over: all that the template writes, without generation prompt.

    Args:
        renderer: Of the model's chat template.
        messages: The conversation; control tokens that are spelled out in it become ordinary text.
        tools: Descriptions of functions, for templates that show them.

    Raises:
        ConversationError: If the template refuses the conversation.
    """
    safe = [guarded(renderer.encoder, message) for message in messages]
    return renderer.encoder.encode(renderer.render_text(safe, generate=False, tools=tools))


def scored_at_end(token_ids: Sequence[int], appended: int) -> TokenSequence:
    """Return a text that is scored as a whole.

    Args:
        token_ids: At least one.
        appended: The token behind it that is marked; it may be any.
    """
    return TokenSequence([*token_ids, appended], [False] * len(token_ids) + [True])


def scored_steps(
    renderer: ChatRenderer, messages: Sequence[Mapping[str, Any]], steps: Sequence[str], separator: str, appended: int
) -> TokenSequence:
    """Return an answer whose steps are scored, each behind the separator that follows it.

    Steps and separators are tokenised apart, so that the tokens of a step do not depend on the next one.

    Args:
        renderer: Of the model's chat template.
        messages: What was asked.
        steps: At least one.
        separator: Stands behind every step, the last one included.
        appended: The token behind the last separator that is marked; it may be any.

    Raises:
        ConversationError: If the template refuses what was asked.
    """
    encoder = renderer.encoder

    def encode(text: str) -> list[int]:
        return encoder.encode(encoder.guard(text, THINKING_TAGS))

    asked = [guarded(encoder, message) for message in messages]
    ids = encoder.encode(renderer.render_text(asked, generate=True))
    between, marked = encode(separator), set[int]()
    for step in steps:
        ids = [*ids, *encode(step), *between]
        marked.add(len(ids))
    ids = [*ids, appended]
    return TokenSequence(ids, [place in marked for place in range(len(ids))])


def split_steps(answer: str, separator: str) -> list[str]:
    """Return the steps of an answer, without those that are empty; an answer of nothing is one empty step."""
    return [step for step in answer.split(separator) if step.strip()] or [""]
