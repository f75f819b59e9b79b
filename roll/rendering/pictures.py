"""Pictures in conversations: where a message shows one, and which tokens of a prompt stand for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

from roll.generation.pictures import Picture
from roll.rendering.chat import ChatRenderer, Message
from roll.rendering.errors import ChatTemplateError, ConversationError

PICTURE: Final = "\ufffc"
"""Stands for a picture in the text of a message: Unicode's character for what is put between letters."""

_NO_PICTURE: Final = "\ufffd"

Grid = Callable[[bytes], tuple[int, int]]
"""From an encoded picture to rows and columns of the grid of tokens that stands for it."""


def without_pictures(text: str) -> str:
    """Return text of which nothing is taken for a picture."""
    return text.replace(PICTURE, _NO_PICTURE)


class PictureRenderer(ChatRenderer):
    """Renders conversations in which the user shows pictures.

    Attributes:
        placeholder: The token that stands for a cell of a picture.
    """

    def __init__(self, tokenizer: Any, *, placeholder: int, grid: Grid, **options: Any) -> None:
        """Find what the template writes for a picture.

        Args:
            tokenizer: A Hugging Face tokenizer with the chat template of a vision-language model.
            placeholder: The token that stands for a cell of a picture.
            grid: How many cells a picture has.
            **options: See :class:`ChatRenderer`.

        Raises:
            ChatTemplateError: The template shows no pictures, or writes them unlike text.
        """
        super().__init__(tokenizer, **options)
        self._again = functools.partial(self._again, placeholder=placeholder, grid=grid)
        self.placeholder = placeholder
        self._grid = grid
        self._written = self._picture_text(tokenizer)

    def tokens_of(self, data: bytes) -> int:
        """Return how many placeholders stand for an encoded picture.

        Raises:
            ConversationError: It cannot be read.
        """
        rows, columns = self._cells(data)
        return rows * columns

    def expanded(self, ids: Sequence[int], shown: Sequence[bytes]) -> tuple[list[int], list[Picture]]:
        """Return tokens in which every picture has as many placeholders as cells, and the pictures.

        Args:
            ids: Of a conversation, or what goes on from one: one placeholder for each picture.
            shown: The encoded pictures, in order.

        Raises:
            ConversationError: There are not as many pictures as placeholders, or one cannot be read.
        """
        written = sum(token == self.placeholder for token in ids)
        if written != len(shown):
            raise ConversationError(
                f"the prompt has places for {written} pictures, and {len(shown)} are shown.",
                "use a chat template that keeps every message of the user in the history.",
            )
        tokens: list[int] = []
        pictures: list[Picture] = []
        waiting = iter(shown)
        for token in ids:
            if token != self.placeholder:
                tokens.append(token)
                continue
            data = next(waiting)
            rows, columns = self._cells(data)
            pictures.append(Picture(len(tokens), rows, columns, data))
            tokens += [token] * (rows * columns)
        return tokens, pictures

    def _cells(self, data: bytes) -> tuple[int, int]:
        try:
            return self._grid(data)
        except ValueError as error:
            raise ConversationError(f"a picture cannot be shown: {error}.", "encode it as PNG.") from error

    def _guarded(self, messages: Sequence[Message]) -> list[dict[str, str]]:
        return [
            {**message, "content": message["content"].replace(PICTURE, self._written)}
            if message["role"] == "user"
            else message
            for message in super()._guarded(messages)
        ]

    def _picture_text(self, tokenizer: Any) -> str:
        """Return what the template writes for a picture, which must be the same between other words."""
        before, after = "before it ", " after it"
        parts = [{"type": "text", "text": before}, {"type": "image"}, {"type": "text", "text": after}]
        whole = self.render_text([{"role": "user", "content": parts}], generate=False)
        _, found, rest = whole.partition(before)
        written, also_found, _ = rest.partition(after)
        if not (found and also_found) or self._encoder.encode(written).count(self.placeholder) != 1:
            name = tokenizer.convert_ids_to_tokens(self.placeholder)
            raise ChatTemplateError(
                f"the chat template writes no {name} where a message shows a picture.",
                "use the template of the vision-language model itself: leave actor_train.data_args.template out.",
            )
        as_text = self.render_text([{"role": "user", "content": before + written + after}], generate=False)
        if as_text != whole:
            raise ChatTemplateError(
                "the chat template writes a message with a picture unlike a message of text.",
                "use the template of the vision-language model itself: leave actor_train.data_args.template out.",
            )
        return written
