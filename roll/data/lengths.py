"""Prompts that are too long: measuring them, and cutting their content so that the template stays whole."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

from roll.config.errors import FixableError
from roll.data.rows import Messages
from roll.generation import Picture

Encode = Callable[[Messages], list[int]]
"""A conversation as token ids, template and generation prompt included."""

EncodeText = Callable[[str], list[int]]
"""Plain text as token ids, without anything added."""

Decode = Callable[[Sequence[int]], str]
"""The text of token ids, control tokens included."""

_CACHED_RESTS: Final = 1024
_SLACK: Final = 8
"""Tokens per message by which a longer content may join worse with the template around it."""


class PictureTokens(Protocol):
    """Pictures to tokens; :class:`roll.rendering.PictureRenderer` is one."""

    def tokens_of(self, data: bytes) -> int:
        """Return how many placeholders stand for an encoded picture; raises ``FixableError`` if it is none."""
        ...

    def expanded(self, ids: Sequence[int], shown: Sequence[bytes]) -> tuple[list[int], list[Picture]]:
        """Return tokens with as many placeholders as pictures have cells, of tokens with one for each picture."""
        ...


class LengthLimit:
    """The limit of a data set's prompts, and what is done to those that exceed it."""

    def __init__(
        self,
        limit: int | None,
        truncation: Literal["error", "left", "right"],
        *,
        encode: Encode,
        encode_text: EncodeText,
        decode: Decode,
        prompt_text: Decode | None = None,
        pictures: PictureTokens | None = None,
    ) -> None:
        """Set the limit.

        Args:
            limit: Most tokens of a prompt, template included; ``None`` for no limit.
            truncation: The end of the content that is cut off; ``error`` forbids cutting.
            encode: Conversation to tokens.
            encode_text: Text to tokens.
            decode: Tokens to text.
            prompt_text: The text of a prompt that is token ids already; raises ``FixableError`` where it may not be.
                ``None``: as ``decode`` says.
            pictures: Pictures to tokens; ``None`` where none can be shown.
        """
        self._pictures = pictures
        self.prompt_text = prompt_text or decode
        self.limit = limit
        self.truncation = truncation
        self._encode = encode
        self._encode_text = encode_text
        self._decode = decode
        self._scaffolding: dict[tuple[str, ...], int] = {}
        self._uncut: dict[tuple[tuple[str, str], ...], int] = {}

    def beside(self, pictures: Sequence[bytes]) -> LengthLimit:
        """Return the limit of what stands beside pictures, each of which is one token there.

        Raises:
            FixableError: One is no picture, or none can be shown.
        """
        if not pictures:
            return self
        if self._pictures is None:
            raise FixableError("the row has pictures, and nothing here can show them.", "remove `image_key`.")
        taken = sum(self._pictures.tokens_of(data) - 1 for data in pictures)
        beside = copy.copy(self)
        beside.limit = None if self.limit is None else max(self.limit - taken, 0)
        return beside

    def expanded(self, ids: list[int], pictures: Sequence[bytes]) -> tuple[list[int], Sequence[Picture]]:
        """Return the tokens of a prompt with placeholders for what its pictures show, and the pictures.

        Raises:
            FixableError: The prompt has not as many places as pictures.
        """
        return (ids, ()) if self._pictures is None else self._pictures.expanded(ids, pictures)

    def excess(self, messages: Messages, prompt_ids: Sequence[int] | None = None) -> int:
        """Return by how many tokens the prompt exceeds the limit; 0 or less if it does not.

        Prompts of which the number of characters alone shows that they fit are not tokenised; nor is one that is token
        ids already, ``prompt_ids``.

        Raises:
            FixableError: If the template refuses such a conversation.
        """
        if prompt_ids is not None:
            return 0 if self.limit is None else len(prompt_ids) - self.limit
        self._template_share(messages)
        if self.limit is None or self._surely_fits(messages, self.limit):
            return 0
        return len(self._encode(messages)) - self.limit

    def check_cut(self, messages: Messages) -> None:
        """Check that a prompt which is too long can be cut, without cutting it.

        Raises:
            FixableError: If what may not be cut exceeds the limit on its own.
        """
        if self.limit is None:
            return
        rest = _with_content(messages, "x")
        key = tuple((message["role"], message["content"]) for message in rest)
        length = self._uncut.get(key)
        if length is None:
            length = len(self._encode(rest))
            # Mostly one system prompt for all rows.
            if len(self._uncut) < _CACHED_RESTS:
                self._uncut[key] = length
        if length > self.limit:
            raise _cannot_cut(length - self.limit)

    def fit(self, messages: Messages, prompt_ids: list[int] | None = None) -> tuple[Messages, list[int]]:
        """Return the conversation and its tokens, cut if it is too long.

        The content of the last user message loses as many tokens as needed at the chosen end; all other messages and
        the template's own tokens stay. The result has ``limit`` tokens, or a few less where text tokenises differently
        once it is cut. A prompt that is token ids already, ``prompt_ids``, keeps those of the other end.

        Raises:
            FixableError: If it is too long and may not or cannot be cut.
        """
        ids = self._encode(messages) if prompt_ids is None else prompt_ids
        if self.limit is None or len(ids) <= self.limit:
            return messages, ids
        if self.truncation == "error":
            raise FixableError(
                f"the prompt has {len(ids)} tokens, {len(ids) - self.limit} more than `prompt_length`.",
                "set `truncation: left` or `right`, or `filter_overlong_prompts: true`, or raise `prompt_length`.",
            )
        if prompt_ids is not None:
            kept = ids[-self.limit :] if self.truncation == "left" else ids[: self.limit]
            return _with_content(messages, self.prompt_text(kept)), kept
        return self._cut(messages, len(ids) - self.limit, self.limit)

    def _cut(self, messages: Messages, excess: int, limit: int) -> tuple[Messages, list[int]]:
        pieces = self._encode_text(_last_user(messages)["content"])
        fits, exceeds = 0, len(pieces)
        guess = len(pieces) - excess
        best: tuple[Messages, list[int]] | None = None
        while exceeds - fits > 1:
            # Nearly always a token less is a token less; where text joins into other tokens, halving finds the cut.
            keep = guess if fits < guess < exceeds else (fits + exceeds) // 2
            cut = _with_content(messages, self._kept_text(pieces, keep))
            ids = self._encode(cut)
            if len(ids) <= limit:
                fits, best = keep, (cut, ids)
            else:
                exceeds = keep
            if len(ids) == limit:
                break
            guess = keep - (len(ids) - limit)
        if best is None:
            raise _cannot_cut(excess)
        return best

    def _kept_text(self, pieces: Sequence[int], keep: int) -> str:
        # A cut through the bytes of a character leaves replacement characters at that end.
        if self.truncation == "left":
            return self._decode(pieces[-keep:]).lstrip("\ufffd")
        return self._decode(pieces[:keep]).rstrip("\ufffd")

    def _surely_fits(self, messages: Messages, limit: int) -> bool:
        """Whether the prompt fits even if each character is a token; only said of ASCII, which no tokenizer expands."""
        characters = sum(len(message["content"]) for message in messages)
        if characters > limit or not all(message["content"].isascii() for message in messages):
            return False
        return self._template_share(messages) + characters + _SLACK * len(messages) <= limit

    def _template_share(self, messages: Messages) -> int:
        """Return the tokens of a conversation of the same roles with next to nothing in it.

        Raises:
            FixableError: If the template refuses such a conversation.
        """
        roles = tuple(message["role"] for message in messages)
        if roles not in self._scaffolding:
            # Not empty: templates may leave out empty messages.
            self._scaffolding[roles] = len(self._encode([{"role": role, "content": "x"} for role in roles]))
        return self._scaffolding[roles]


def _last_user(messages: Messages) -> dict[str, str]:
    """Return the message that is cut: the user's last, or the last where there is none (a tool's result)."""
    return next((message for message in reversed(messages) if message["role"] == "user"), messages[-1])


def _with_content(messages: Messages, content: str) -> Messages:
    """Return a copy in which the message that is cut has another content."""
    target = _last_user(messages)
    return [{**message, "content": content} if message is target else dict(message) for message in messages]


def _cannot_cut(excess: int) -> FixableError:
    return FixableError(
        f"the prompt exceeds `prompt_length` by {excess} tokens that may not be cut: they are not the last message's.",
        "shorten the other messages or the system prompt, or raise `prompt_length`.",
    )
