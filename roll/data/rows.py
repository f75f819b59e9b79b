"""One row of a data set as a conversation, its answer and its domain."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from roll.config.errors import FixableError, choose_from
from roll.config.worker import DataArgs
from roll.data.errors import DataError
from roll.data.json_text import parse_json
from roll.data.row_pictures import pictures_of, with_places

Messages = list[dict[str, str]]

TOKENS: Final = "input_ids"
"""The column of rows that are tokens already, as other programs call it too."""


class TokenIds(list[int]):
    """The cell of a data set that holds token ids in place of a text."""


@dataclass(frozen=True, slots=True)
class ParsedRow:
    """What a row says.

    Attributes:
        messages: The conversation up to the response, system prompt included; of token ids, their text.
        ground_truth: The right answer as text, ``None`` where there is none.
        tag: The row's label.
        prompt_ids: The tokens of the prompt, where the row holds them itself.
        pictures: The encoded pictures that the user's messages show, in order.
    """

    messages: Messages
    ground_truth: str | None
    tag: str
    prompt_ids: list[int] | None = None
    pictures: tuple[bytes, ...] = ()


class RowReader:
    """Reads the rows of one file by the columns that the configuration names."""

    def __init__(
        self,
        args: DataArgs,
        columns: Iterable[str],
        *,
        file: str,
        only_domain: str | None,
        text_of: Callable[[Sequence[int]], str],
    ) -> None:
        """Decide which columns are read.

        Args:
            args: The ``data_args`` section.
            columns: The columns of the file.
            file: How messages name the file.
            only_domain: The tag of all rows if the file has no tag column; ``None`` if there are several domains.
            text_of: The text of token ids; raises ``FixableError`` where rows may not be token ids.

        Raises:
            DataError: If the file has no column for prompts, or it is not clear which one it is.
        """
        names = sorted(columns)
        self._column, self._chat = _content_column(args, names, file)
        self._ground_truth = args.ground_truth
        self._tag = args.tag
        self._only_tag = only_domain if not _has(names, args.tag) else None
        self._system = args.system_prompt
        self._images = find_column(args, "image_key", names, file)
        self._text_of = text_of

    def with_text_of(self, text_of: Callable[[Sequence[int]], str]) -> RowReader:
        """Return what reads the same, where something else says the text of token ids."""
        other = copy.copy(self)
        other._text_of = text_of
        return other

    def read(self, row: Mapping[str, Any]) -> ParsedRow:
        """Return what ``row`` says.

        Raises:
            FixableError: If the row cannot be used.
        """
        content = row.get(self._column)
        answer, tag = self._text(lookup(row, self._ground_truth)), self._tag_of(row)
        if _is_token_ids(content):
            if self._system is not None:
                what = f"`system_prompt` cannot stand before {self._column!r}, which is token ids already."
                raise FixableError(what, "remove `system_prompt`, or use rows with text.")
            return ParsedRow([{"role": "user", "content": self._text_of(content)}], answer, tag, list(content))
        # verl keeps chat messages in its prompt column.
        chat = self._chat or isinstance(content, list)
        messages = _messages(content, self._column) if chat else _prompt(content, self._column)
        pictures: tuple[bytes, ...] = ()
        if self._images is not None:
            pictures = pictures_of(row.get(self._images), self._images)
            messages = with_places(messages, len(pictures))
        if self._system is not None and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": self._system}, *messages]
        return ParsedRow(messages, answer, tag, pictures=pictures)

    def without_pictures(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a row without its pictures, which go their own way."""
        return row if self._images is None else {key: value for key, value in row.items() if key != self._images}

    def _tag_of(self, row: Mapping[str, Any]) -> str:
        if self._only_tag is not None:
            return self._only_tag
        tag = self._text(lookup(row, self._tag))
        if not tag:
            raise FixableError(
                f"the row has no {self._tag!r}, so it is not known how to grade it.",
                "write the tag of a domain there, or name the column that has it with `tag`.",
            )
        return tag

    def _text(self, value: Any) -> str | None:
        return self._text_of(value) if isinstance(value, TokenIds) else as_text(value)


def lookup(row: Mapping[str, Any], path: str) -> Any:
    """Return the value at ``path``, ``None`` where it leads nowhere.

    A column that is called like the whole path wins; otherwise dots go into mappings, which may also be JSON text.
    """
    if path in row:
        return row[path]
    value: Any = row
    for key in path.split("."):
        if isinstance(value, str) and value.lstrip().startswith("{"):
            try:
                value = parse_json(value)
            except ValueError:
                return None
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def find_column(keys: object, key: str, columns: Sequence[str], file: str, *usual: str) -> str | None:
    """Return the column that a key names, else the first that has a usual name.

    Args:
        keys: The configuration; one that lacks the key names none.
        key: The key.
        columns: The columns of the file.
        file: How messages name the file.
        usual: Usual names.

    Raises:
        DataError: The column that is named is not there.
    """
    named: str | None = getattr(keys, key, None)
    if named is not None and named not in columns:
        raise DataError(f"no column {named!r}, which `{key}` names.", choose_from(named, columns), file=file)
    return named or next((name for name in usual if name in columns), None)


def _has(columns: Sequence[str], path: str) -> bool:
    return path in columns or path.split(".")[0] in columns


def _content_column(args: DataArgs, columns: Sequence[str], file: str) -> tuple[str, bool]:
    """Return the column with the conversation, and whether it holds messages."""
    if args.prompt is not None and args.messages is not None:
        fix = "remove one of them; `prompt` is for text, `messages` for conversations."
        raise DataError("`prompt` and `messages` are both set.", fix)
    chosen = find_column(args, "prompt" if args.prompt else "messages", columns, file)
    if chosen is not None:
        return chosen, args.messages is not None
    found = [name for name in ("prompt", "messages") if name in columns]
    if len(found) == 2:
        fix = "say which one is meant: `prompt: prompt` or `messages: messages`."
        raise DataError("the file has both a `prompt` and a `messages` column.", fix, file=file)
    if not found and TOKENS in columns:
        return TOKENS, False
    if not found:
        fix = f"name the column with the problems by `prompt` or `messages`: one of {', '.join(columns) or '(none)'}."
        raise DataError("no column `prompt` or `messages`.", fix, file=file)
    return found[0], found[0] == "messages"


def _is_token_ids(content: Any) -> TypeGuard[list[int]]:
    return isinstance(content, list) and bool(content) and all(type(item) is int for item in content)


def _prompt(content: Any, column: str) -> Messages:
    if not isinstance(content, str):
        what = f"{column!r} is missing." if content is None else f"{column!r} is {type(content).__name__}, not text."
        raise FixableError(what, "write the problem there as text.")
    if not content.strip():
        raise FixableError(f"{column!r} is empty.", "write the problem there.")
    return [{"role": "user", "content": content}]


def _messages(content: Any, column: str) -> Messages:
    expected = f"{column!r} must be a list of {{role, content}}, or that as JSON text."
    if isinstance(content, str):
        try:
            content = parse_json(content)
        except ValueError as error:
            raise FixableError(f"{column!r} is text that is not valid JSON: {error}.", expected) from None
    if not isinstance(content, list) or not content:
        raise FixableError(f"{column!r} has no messages.", expected)
    messages = [_message(item, f"message {number} of {column!r}") for number, item in enumerate(content, start=1)]
    if messages[-1]["role"] in ("assistant", "system"):
        raise FixableError(
            f"{column!r} ends with a message of the {messages[-1]['role']}, so there is nothing to answer.",
            "end the conversation with the user's message; answers belong in the ground truth.",
        )
    return messages


def _message(item: Any, place: str) -> dict[str, str]:
    if not isinstance(item, Mapping):
        raise FixableError(f"{place} is {type(item).__name__}.", "write it as {role, content}.")
    role, content = item.get("role"), item.get("content")
    if not isinstance(role, str) or not role:
        raise FixableError(f"{place} has no role.", "set `role` to system, user or assistant.")
    if not isinstance(content, str):
        raise FixableError(f"{place} has no text as `content`.", "only text can be used; write it as one string.")
    return {"role": role, "content": content}


def as_text(value: Any) -> str | None:
    """Return a value of a row as the text a data file would have; ``None`` for NaN, which tables write for nothing."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and math.isnan(value):
        return None
    # JSON spells numbers, booleans and lists as a data file does; dates and decimals have a spelling of their own.
    plain = isinstance(value, int | float | list | dict)
    return json.dumps(value, ensure_ascii=False, default=str) if plain else str(value)
