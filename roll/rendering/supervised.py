"""Conversations that were held, as tokens to imitate: which of them a model would have sampled, exactly.

A model is asked with the conversation up to the generation prompt, and answers until the token that ends its turn. So
the tokens of an answer are what the template writes between the generation prompt and that token, encoded on their own.
Where the template later writes an answer in another way (without its thinking), the tokens that follow it never follow
what was sampled: such a conversation makes several sequences, as it does when it is played.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roll.rendering.chat import ChatRenderer
from roll.rendering.encoding import THINKING_TAGS, PromptEncoder
from roll.rendering.errors import ConversationError

ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """Tokens to train on.

    Attributes:
        token_ids: The tokens.
        trained: Which of them are imitated, as many; never the first, before which there is nothing.
    """

    token_ids: list[int]
    trained: list[bool]

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(slots=True)
class _Text:
    """Rendered text, and where in it answers stand."""

    text: str
    spans: list[tuple[int, int]] = field(default_factory=list)


def encode_conversation(
    renderer: ChatRenderer,
    messages: Sequence[Mapping[str, Any]],
    trained: Sequence[bool],
    tools: Sequence[Any] | None = None,
) -> list[TokenSequence]:
    """Return the tokens of a conversation, with those of the assistant's chosen messages marked.

    What follows the last chosen message is left out. Control tokens that are spelled out in a message become ordinary
    text.

    Args:
        renderer: Of the model's chat template.
        messages: The conversation: ``role``, ``content``, and what else the template reads (``tool_calls``).
        trained: Which messages are imitated; only those of the assistant can be.
        tools: Descriptions of functions, for templates that show them.

    Returns:
        One sequence; several where the template rewrites answers once the conversation goes on.

    Raises:
        ConversationError: If the template refuses the conversation, or writes a turn otherwise than it asks for it.
    """
    safe = [guarded(renderer.encoder, message) for message in messages]
    found: list[_Text] = []
    for number in reversed(range(len(messages))):
        if not trained[number] or messages[number]["role"] != ASSISTANT:
            continue
        asked = renderer.render_text(safe[:number], generate=True, tools=tools)
        held = renderer.render_text(safe[: number + 1], generate=False, tools=tools)
        if not held.startswith(asked):
            raise ConversationError(
                f"the chat template writes message {number + 1}, an answer, otherwise than it asks for it.",
                "set `enable_thinking: false` for answers without thoughts, write the thoughts into the answer, or set "
                "another `template`.",
            )
        end = renderer.encoder.end_of_control(held[len(asked) :], renderer.stop_token_ids)
        span = (len(asked), len(held) if end is None else len(asked) + end)
        within = next((one for one in found if one.text.startswith(held[: span[1]])), None)
        if within is None:
            within = _Text(held[: span[1]])
            found.insert(0, within)
        within.spans.insert(0, span)
    return [_encoded(renderer.encoder, one) for one in found]


def encode_text(tokenizer: Any, text: str) -> TokenSequence:
    """Return the tokens of a text, all of them imitated, with the token that ends a text behind it.

    Control tokens that are spelled out in it are control tokens: such a text may be a conversation already rendered.
    """
    ids = list(tokenizer(text)["input_ids"])
    eos = getattr(tokenizer, "eos_token_id", None)
    if eos is not None and (not ids or ids[-1] != eos):
        ids.append(eos)
    return TokenSequence(ids, [False] + [True] * (len(ids) - 1) if ids else [])


def _encoded(encoder: PromptEncoder, one: _Text) -> TokenSequence:
    parts: list[str] = []
    position = 0
    for start, end in one.spans:
        parts += [one.text[position:start], one.text[start:end]]
        position = end
    ids: list[int] = []
    trained: list[bool] = []
    for number, part in enumerate(encoder.encode_parts(parts)):
        ids += part
        trained += [number % 2 == 1] * len(part)
    if trained:
        trained[0] = False
    return TokenSequence(ids, trained)


def guarded(encoder: PromptEncoder, message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message none of whose texts can become a control token."""
    keep = THINKING_TAGS if message["role"] == ASSISTANT else frozenset()
    return {key: value if key == "role" else _guard(encoder, value, keep) for key, value in message.items()}


def _guard(encoder: PromptEncoder, value: Any, keep: frozenset[str]) -> Any:
    if isinstance(value, str):
        return encoder.guard(value, keep)
    if isinstance(value, Mapping):
        return {key: _guard(encoder, item, keep) for key, item in value.items()}
    if isinstance(value, list):
        return [_guard(encoder, item, keep) for item in value]
    return value
