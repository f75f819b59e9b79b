"""Rendered text to token ids, where only the template may write control tokens.

A chat template returns one string in which its own control tokens (``<|im_end|>``) and a user's literal
``<|im_end|>`` look the same. :class:`PromptEncoder` keeps them apart: :meth:`PromptEncoder.guard` replaces control
tokens in content by private-use characters before the template sees them, and :meth:`PromptEncoder.encode` spells
them as ordinary text afterwards.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from roll.rendering.errors import ConversationError

THINKING_TAGS = frozenset({"<think>", "</think>"})
"""Tags that templates look for in an assistant's text; they structure a message, not the conversation."""

# Guarded text: escape character + one character per control token, or the escape character twice for itself.
_ESCAPE = "\U0010fffd"
_FIRST_INDEX = 0x100000
_GUARDED = re.compile(_ESCAPE + "(.)", re.DOTALL)

# Template scaffolding ("\n", "user\n") recurs every turn; observations are longer than this.
_CACHED_CHUNK_LENGTH = 24
_CACHED_CHUNKS = 1024

# Members of a group begin with the same prompt, one soon after the other.
_CACHED_PROMPTS = 32


def require_known(tokenizer: Any, ids: Iterable[int]) -> None:
    """Check that token ids which came from elsewhere are tokens of ``tokenizer``.

    Raises:
        ConversationError: One is not.
    """
    known = len(tokenizer)
    strange = next((token for token in ids if not 0 <= token < known), None)
    if strange is not None:
        message = f"token {strange} is none of the {known} of this model: the row was made for another one."
        raise ConversationError(message, "use the model whose tokens they are, or rows with messages.")


class PromptEncoder:
    """Encodes rendered prompts so that content cannot produce a control token.

    The tokenizer is copied: encoding does not depend on, or change, settings of the caller's object.

    Attributes:
        control_ids: Id of every control token by its text.
    """

    def __init__(self, tokenizer: Any, scaffolding: str = "") -> None:
        """Read the control tokens of ``tokenizer``.

        Args:
            tokenizer: A Hugging Face tokenizer.
            scaffolding: Text that the chat template writes around messages. Added tokens that occur in it count as
                control tokens even if the tokenizer does not flag them as special.
        """
        added = {str(token): (index, token) for index, token in tokenizer.added_tokens_decoder.items()}
        self.control_ids: dict[str, int] = {
            text: index
            for text, (index, token) in added.items()
            if token.special or (text in scaffolding and text not in THINKING_TAGS)
        }
        self._tokenizer = tokenizer
        unflagged = [text for text in self.control_ids if not added[text][1].special]
        self._backend = _private_backend(tokenizer, unflagged)
        self._names = sorted(self.control_ids, key=len, reverse=True)
        self._index = {name: chr(_FIRST_INDEX + i) for i, name in enumerate(self._names)}
        self._guard_pattern = re.compile("|".join([*map(re.escape, self._names), _ESCAPE]))
        self._prefix = os.path.commonprefix(self._names)
        self._control_pattern = _control_pattern({name: added[name][1] for name in self._names}, self._prefix)
        self._chunks: dict[str, list[int]] = {}
        self._recent = functools.lru_cache(_CACHED_PROMPTS)(self._encode_anew)
        self._piecewise = True

    def check_piecewise(self, samples: Iterable[str]) -> bool:
        """Compare encoding between control tokens with encoding the whole text, and remember the outcome.

        The two agree for byte-level vocabularies. They differ where a tokenizer treats the start of a text specially
        (SentencePiece's leading space): whole texts are then encoded natively, and :meth:`guard` breaks control tokens
        in content with a zero-width space instead.

        Args:
            samples: Rendered conversations without hostile content.

        Returns:
            Whether pieces may be encoded on their own, which extending a conversation needs.
        """
        self._piecewise = all(self.encode(sample) == self._native(sample) for sample in samples)
        return self._piecewise

    def guard(self, content: str, keep: frozenset[str] = frozenset()) -> str:
        """Return ``content`` in a form whose control tokens :meth:`encode` spells as ordinary text.

        Args:
            content: Text that is not the template's.
            keep: Control tokens to leave alone.
        """
        # Control tokens nearly always share a beginning ("<|") that boards and prose never contain.
        if self._prefix not in content and _ESCAPE not in content:
            return content

        def replace(match: re.Match[str]) -> str:
            text = match.group()
            if text in keep:
                return text
            if not self._piecewise:
                return text if text == _ESCAPE else text[0] + "\u200b" + text[1:]
            return _ESCAPE + self._index.get(text, _ESCAPE)

        return self._guard_pattern.sub(replace, content)

    def control_at_start(self, text: str) -> int | None:
        """Return the id of the control token that ``text`` begins with, if it begins with one."""
        match = self._control_pattern.match(text)
        return None if match is None else self.control_ids[match.group().strip()]

    def controls(self, text: str) -> list[str]:
        """Return the control tokens that rendered text is written with, in order."""
        return [match.group().strip() for match in self._control_pattern.finditer(text)]

    def without_controls(self, text: str) -> str:
        """Return rendered text less its control tokens."""
        return self._control_pattern.sub("", text)

    def encode(self, text: str) -> list[int]:
        """Return the ids of rendered text whose contents were guarded; no BOS or EOS is added.

        Raises:
            ConversationError: If the text holds half of a surrogate pair, which no encoding can write.
        """
        if not self._piecewise:
            return self._native(text)
        ids: list[int] = []
        position = 0
        for match in self._control_pattern.finditer(text):
            if match.start() > position:
                ids += self._encode_chunk(text[position : match.start()])
            ids.append(self.control_ids[match.group().strip()])
            position = match.end()
        if position < len(text):
            ids += self._encode_chunk(text[position:])
        return ids

    def encode_parts(self, parts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each part of a rendered text, so that no token lies in two of them.

        Where pieces may not be encoded on their own (:meth:`check_piecewise`), the text is encoded as a whole, and a
        token belongs to the part in which it begins.

        Raises:
            ConversationError: The text holds half of a surrogate pair, or it must be encoded as a whole and the
                tokenizer does not say where its tokens begin.
        """
        if self._piecewise:
            return [self.encode(part) for part in parts]
        if self._backend is None:
            message = "the tokenizer does not say where its tokens begin, so they cannot be dealt to messages."
            raise ConversationError(message, "use a model with a fast tokenizer.")
        found = self._tokenizer("".join(parts), add_special_tokens=False, return_offsets_mapping=True)
        ids: list[list[int]] = [[] for _ in parts]
        ends = list(accumulate(map(len, parts)))
        for token, (start, end) in zip(found["input_ids"], found["offset_mapping"], strict=True):
            # What marks the start of a word takes in the space before it.
            ids[min(bisect_right(ends, min(start, max(end - 1, 0))), len(parts) - 1)].append(token)
        return ids

    def end_of_control(self, text: str, chosen: Sequence[int]) -> int | None:
        """Return where the first control token of ``text`` ends whose id is in ``chosen``; ``None`` without one."""
        matches = self._control_pattern.finditer(text)
        return next((match.end() for match in matches if self.control_ids[match.group().strip()] in chosen), None)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``, control tokens included."""
        if self._backend is None:
            return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
        return str(self._backend.decode(ids, skip_special_tokens=False))

    def _encode_chunk(self, chunk: str) -> list[int]:
        cached = self._chunks.get(chunk)
        if cached is not None:
            return cached
        ids = self._recent(chunk)
        if len(chunk) <= _CACHED_CHUNK_LENGTH and len(self._chunks) < _CACHED_CHUNKS:
            self._chunks[chunk] = ids
        return ids

    def _encode_anew(self, chunk: str) -> list[int]:
        plain = _GUARDED.sub(self._unguard, chunk) if _ESCAPE in chunk else chunk
        if self._backend is None:
            return list(self._tokenizer.encode(plain, add_special_tokens=False, split_special_tokens=True))
        try:
            ids: list[int] = self._backend.encode(plain, add_special_tokens=False).ids
        except TypeError as error:
            raise _without_tokens(plain) from error
        return ids

    def _unguard(self, match: re.Match[str]) -> str:
        index = ord(match.group(1)) - _FIRST_INDEX
        return self._names[index] if 0 <= index < len(self._names) else match.group(1)

    def _native(self, text: str) -> list[int]:
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=False))
        except TypeError as error:
            raise _without_tokens(text) from error


def _without_tokens(text: str) -> ConversationError:
    place = next((index for index, character in enumerate(text) if "\ud800" <= character <= "\udfff"), 0)
    around = text[max(0, place - 20) : place + 20]
    return ConversationError(
        f"the text {around!r} holds half of a surrogate pair, which no encoding can write.",
        "decode bytes with errors='replace', and write characters instead of \\ud800 escapes.",
    )


def _control_pattern(tokens: Mapping[str, Any], prefix: str) -> re.Pattern[str]:
    """Match any of ``tokens`` (longest first), with the white space that a token swallows.

    A literal prefix before the alternatives lets the regular expression engine skip ahead.
    """
    if not tokens:
        return re.compile(r"(?!)")
    if not any(token.lstrip or token.rstrip for token in tokens.values()):
        return re.compile(re.escape(prefix) + "(?:" + "|".join(re.escape(name[len(prefix) :]) for name in tokens) + ")")
    return re.compile(
        "|".join(
            (r"\s*" if token.lstrip else "") + re.escape(name) + (r"\s*" if token.rstrip else "")
            for name, token in tokens.items()
        )
    )


def _private_backend(tokenizer: Any, unflagged: Sequence[str]) -> Any | None:
    """Copy the Rust tokenizer and let it spell control tokens as text; ``None`` for pure Python tokenizers.

    Hugging Face switches this behaviour on the shared object at every call, which is neither fast nor safe beside
    another thread.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    if unflagged:
        state = json.loads(backend.to_str())
        for token in state["added_tokens"]:
            token["special"] = token["special"] or token["content"] in unflagged
        private = type(backend).from_str(json.dumps(state))
    else:
        private = copy.deepcopy(backend)
    private.encode_special_tokens = True
    private.no_truncation()
    private.no_padding()
    return private
