"""One row of a data set as a demonstration: a conversation, a plain text, or tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from roll.config.demonstration_columns import DemonstrationColumns
from roll.config.errors import FixableError
from roll.data.errors import DataError
from roll.data.json_text import parse_json
from roll.data.rows import TOKENS, as_text, find_column

Message = dict[str, Any]

MASKS: Final = ("assistant_masks", "completion_mask")
"""Columns that say which tokens of a row are imitated, under the names that TRL gives them too."""

LABELS: Final = "labels"
"""The column of those of ``transformers``: the tokens themselves, and of those that are not imitated -100."""

_IGNORED: Final = -100

_CHATS: Final = ("messages", "conversations")
_PAIRS: Final = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("instruction", "output"),
    ("instruction", "response"),
)
_TEXT: Final = "text"
_SPEAKERS: Final = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
"""Roles by the names of ShareGPT."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation to imitate the answers of.

    Attributes:
        messages: ``role``, ``content``, and what else chat templates read.
        trained: Which messages are imitated.
        tools: Descriptions of functions that may be called.
    """

    messages: list[Message]
    trained: list[bool]
    tools: list[Any] | None = None


@dataclass(frozen=True, slots=True)
class PlainText:
    """A text to imitate all of."""

    text: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens, and which of them are imitated.

    Attributes:
        token_ids: The tokens.
        trained: Which of them, as many.
        says: What the first of those that are imitated say, where the row holds the conversation beside its tokens.
    """

    token_ids: list[int]
    trained: list[bool]
    says: str | None = None


Demonstration = Conversation | PlainText | Tokens


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of a file hold what; one of ``tokens``, ``messages``, ``prompt`` and ``text`` is set."""

    tokens: str | None = None
    mask: str | None = None
    messages: str | None = None
    prompt: str | None = None
    query: str | None = None
    response: str | None = None
    text: str | None = None
    system: str | None = None
    tools: str | None = None

    @classmethod
    def of(cls, keys: DemonstrationColumns, columns: Iterable[str], file: str) -> Columns:
        """Return the columns that the configuration names, else those with the usual names.

        Raises:
            DataError: A column is not there, or none has a usual name.
        """
        names = sorted(columns)
        for key in ("messages_key", "prompt_key", "query_key", "response_key", "system_key", "text_key", "tools_key"):
            find_column(keys, key, names, file)  # must be there even if it is not read
        more = {"system": keys.system_key, "tools": find_column(keys, "tools_key", names, file, "tools")}
        if keys.messages_key is not None:
            return cls(messages=keys.messages_key, **more)
        if keys.prompt_key is not None:
            return cls(prompt=keys.prompt_key, query=keys.query_key, response=keys.response_key, **more)
        if keys.text_key is not None:
            return cls(text=keys.text_key)
        mask = next((name for name in MASKS if name in names), None)
        if TOKENS in names and mask is not None:
            return cls(tokens=TOKENS, mask=mask)
        for name in _CHATS:
            if name in names:
                return cls(messages=name, **more)
        for prompt, response in _PAIRS:
            if prompt in names and response in names:
                query = keys.query_key or ("input" if prompt == "instruction" and "input" in names else None)
                return cls(prompt=prompt, query=query, response=response, **more)
        if _TEXT in names:
            return cls(text=_TEXT)
        if TOKENS in names:
            return cls(tokens=TOKENS, mask=LABELS if LABELS in names else None)
        fix = "name the columns: messages_key; or prompt_key and response_key; or text_key."
        raise DataError(f"no columns with demonstrations among {', '.join(names) or '(none)'}.", fix, file=file)


class DemonstrationReader:
    """Reads the rows of one file."""

    def __init__(self, columns: Columns, system_prompt: str | None) -> None:
        """Remember how.

        Args:
            columns: Of the file.
            system_prompt: System message of conversations that have none.
        """
        self._columns = columns
        self._system = system_prompt

    def read(self, row: Mapping[str, Any]) -> Demonstration:
        """Return what ``row`` demonstrates.

        Raises:
            FixableError: If the row cannot be used.
        """
        columns = self._columns
        if columns.tokens is not None:
            return read_tokens(row, columns.tokens, columns.mask)
        if columns.text is not None:
            return PlainText(read_text(row, columns.text))
        if columns.messages is not None:
            messages, flags = read_messages(row.get(columns.messages), columns.messages)
        else:
            messages, flags = self._pair(row)
        system = system_message(row, columns.system, self._system, messages)
        messages, flags = [*system, *messages], [*([None] * len(system)), *flags]
        trained = [
            message["role"] == "assistant" and flag is not False for message, flag in zip(messages, flags, strict=True)
        ]
        if not any(trained):
            what = "no message of the assistant is to be imitated."
            raise FixableError(what, "add one, or take `train: false` away.")
        return Conversation(messages, trained, read_tools(row, columns.tools))

    def _pair(self, row: Mapping[str, Any]) -> tuple[list[Message], list[bool | None]]:
        """Return a question and its answer; either may be messages."""
        prompt_column, answer_column = str(self._columns.prompt), str(self._columns.response)
        before, _ = read_said(row, prompt_column, "user")
        query = as_text(row.get(self._columns.query)) if self._columns.query is not None else None
        if query and not isinstance(row.get(prompt_column), list):
            before[0]["content"] += f"\n{query}"
        after, flags = read_said(row, answer_column, "assistant")
        return [*before, *after], [*([False] * len(before)), *flags]


def read_text(row: Mapping[str, Any], column: str) -> str:
    """Return the text of a column.

    Raises:
        FixableError: It has none.
    """
    content = row.get(column)
    if not isinstance(content, str):
        what = f"{column!r} is missing." if content is None else f"{column!r} is {type(content).__name__}, not text."
        raise FixableError(what, "write it there as text.")
    if not content.strip():
        raise FixableError(f"{column!r} is empty.", "write something there, or take the row out.")
    return content


def read_said(row: Mapping[str, Any], column: str, role: str) -> tuple[list[Message], list[bool | None]]:
    """Return the messages of a column as :func:`read_messages` does, or its text as one message of ``role``.

    Raises:
        FixableError: It holds neither.
    """
    if isinstance(row.get(column), list):
        return read_messages(row.get(column), column)
    return [{"role": role, "content": read_text(row, column)}], [None]


def system_message(
    row: Mapping[str, Any], column: str | None, default: str | None, messages: list[Message]
) -> list[Message]:
    """Return what is put before messages: the system message of a column, else the default; none if they have one."""
    system = (as_text(row.get(column)) if column is not None else None) or default
    return [{"role": "system", "content": system}] if system and messages[0]["role"] != "system" else []


def read_messages(content: Any, column: str) -> tuple[list[Message], list[bool | None]]:
    """Return the messages of a column, and of each whether it says that it is (not) imitated.

    Raises:
        FixableError: It holds no messages.
    """
    expected = f"{column!r} must be a list of {{role, content}}, or that as JSON text."
    if isinstance(content, str):
        try:
            content = parse_json(content)
        except ValueError as error:
            raise FixableError(f"{column!r} is text that is not valid JSON: {error}.", expected) from None
    if not isinstance(content, list) or not content:
        raise FixableError(f"{column!r} has no messages.", expected)
    places = [(item, f"message {number} of {column!r}") for number, item in enumerate(content, start=1)]
    return [_message(item, place) for item, place in places], [_flag(item, place) for item, place in places]


def _message(item: Any, place: str) -> Message:
    if not isinstance(item, Mapping):
        raise FixableError(f"{place} is {type(item).__name__}.", "write it as {role, content}.")
    if "from" in item and "value" in item:
        role = _SPEAKERS.get(str(item["from"]))
        if role is None:
            fix = f"use one of {', '.join(_SPEAKERS)}, or write messages as {{role, content}}."
            raise FixableError(f"{place} is from {item['from']!r}, who is nobody.", fix)
        return {"role": role, "content": _content(item["value"], False, place)}
    role = item.get("role")
    if not isinstance(role, str) or not role:
        raise FixableError(f"{place} has no role.", "set `role` to system, user, assistant or tool.")
    calls = item.get("tool_calls")
    message: Message = {"role": role, "content": _content(item.get("content"), bool(calls), place)}
    # Tables give every message the keys of all others.
    rest = {key: value for key, value in item.items() if value is not None}
    message |= {key: value for key, value in rest.items() if key not in ("role", "content", "train", "weight")}
    if calls:
        message["tool_calls"] = [_call(call, place) for call in calls]
    return message


def _content(content: Any, may_be_missing: bool, place: str) -> str:
    if content is None and may_be_missing:
        return ""
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text", "")) for part in content)
    if not isinstance(content, str):
        raise FixableError(f"{place} has no text as `content`.", "only text can be used; write it as one string.")
    return content


def _flag(item: Mapping[str, Any], place: str) -> bool | None:
    """Return what ``train`` (or ``weight``, 0 or 1) of a message says; ``None`` where it says nothing."""
    train, weight = item.get("train"), item.get("weight")
    if train is None and weight is not None:
        if weight not in (0, 1):
            raise FixableError(f"{place} has the weight {weight!r}.", "write 0 (not imitated) or 1.")
        return bool(weight)
    if train is not None and not isinstance(train, bool):
        raise FixableError(f"{place} has train: {train!r}.", "write true or false.")
    return train


def _call(call: Any, place: str) -> Any:
    """Return a call of a tool with its arguments as a mapping, which is what chat templates write."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = parse_json(function["arguments"])
    except ValueError as error:
        what = f"{place} calls {function.get('name')!r} with arguments that are not valid JSON: {error}."
        raise FixableError(what, "correct them.") from None
    return {**call, "function": {**function, "arguments": arguments}}


def read_tools(row: Mapping[str, Any], column: str | None) -> list[Any] | None:
    """Return the descriptions of functions of a column, if there is one.

    Raises:
        FixableError: It holds something else.
    """
    content = None if column is None else row.get(column)
    if isinstance(content, str):
        try:
            content = parse_json(content) if content.strip() else None
        except ValueError as error:
            fix = "write a list of descriptions of functions."
            raise FixableError(f"{column!r} is text that is not valid JSON: {error}.", fix) from None
    if content is None or content == []:
        return None
    if not isinstance(content, list):
        raise FixableError(f"{column!r} is {type(content).__name__}.", "write a list of descriptions of functions.")
    return content


def read_tokens(row: Mapping[str, Any], ids_column: str, mask_column: str | None) -> Tokens:
    """Return the tokens of a row, and which are imitated: those that a mask or labels say, else all.

    Raises:
        FixableError: The columns hold something else.
    """
    ids = row.get(ids_column)
    mask = row.get(mask_column) if mask_column is not None else [1] * len(ids or ())
    if not _whole_numbers(ids) or not _whole_numbers(mask) or len(ids) != len(mask):  # type: ignore[arg-type]
        what = f"{ids_column!r} and {mask_column!r} must be lists of whole numbers, as long as each other."
        raise FixableError(what, "write both, a number per token.")
    ids, mask = list(ids or ()), list(mask or ())
    if mask_column is not None and mask_column.endswith(LABELS):
        labels, mask = mask, [label != _IGNORED for label in mask]
        if any(flag and label != token for token, label, flag in zip(ids, labels, mask, strict=True)):
            what = f"{mask_column!r} are not the tokens of {ids_column!r} that are imitated."
            raise FixableError(what, f"write the token itself for each, or {_IGNORED} where it is not imitated.")
    trained = [bool(flag) for flag in mask]
    return Tokens(ids, [False, *trained[1:]], _first_answer(row.get(_CHATS[0])))


def _first_answer(messages: Any) -> str | None:
    """Return the first message that is marked as imitated."""
    if not isinstance(messages, list):
        return None
    marked = (item.get("content") for item in messages if isinstance(item, Mapping) and item.get("train") is True)
    content = next(marked, None)
    return content if isinstance(content, str) else None


def _whole_numbers(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(item, int) for item in value)
