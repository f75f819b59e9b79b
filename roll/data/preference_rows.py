"""One row of a data set as answers that were compared, or as an answer that was judged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from roll.config.errors import FixableError
from roll.config.pair_keys import PairKeys
from roll.data.errors import DataError
from roll.data.rows import TOKENS, find_column
from roll.data.supervised_rows import (
    LABELS,
    Conversation,
    Message,
    Tokens,
    read_messages,
    read_said,
    read_text,
    read_tokens,
    read_tools,
    system_message,
)

_USUAL: Final = {
    "prompt": ("prompt", "question", "instruction"),
    "chosen": ("chosen",),
    "rejected": ("rejected",),
    "completion": ("completion", "response"),
    "label": ("label",),
    "margin": ("margin",),
    "system": (),
    "tools": ("tools",),
}
"""What columns are usually called."""


@dataclass(frozen=True, slots=True)
class PlainAnswer:
    """A plain text, whose beginning other texts of the row may share."""

    text: str


Answer = Conversation | PlainAnswer | Tokens
"""What was asked and answered, with the messages or tokens of the answer marked."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to the same.

    Attributes:
        chosen: The better one.
        rejected: The worse one.
        margin: By how much it is worse, where the row says so.
    """

    chosen: Answer
    rejected: Answer
    margin: float = 0.0


@dataclass(frozen=True, slots=True)
class Judged:
    """One answer, and whether it is desirable."""

    answer: Answer
    desirable: bool


@dataclass(frozen=True, slots=True)
class PreferenceColumns:
    """Which columns of a file hold what: ``chosen`` and ``rejected``, or ``completion`` and ``label``.

    Where columns hold token ids, one with labels is beside each: ``chosen_labels``, ``rejected_labels``, or ``labels``.
    """

    prompt: str | None = None
    chosen: str | None = None
    rejected: str | None = None
    completion: str | None = None
    label: str | None = None
    margin: str | None = None
    system: str | None = None
    tools: str | None = None

    @property
    def tokens(self) -> bool:
        """Whether ``chosen`` and ``rejected`` are token ids, with labels beside them."""
        return (self.chosen, self.rejected) == (f"chosen_{TOKENS}", f"rejected_{TOKENS}")

    @property
    def judged_tokens(self) -> bool:
        """Whether a judged answer is token ids, what was asked included, with labels beside them."""
        return self.completion == TOKENS

    @classmethod
    def of(cls, keys: PairKeys, columns: Iterable[str], file: str) -> PreferenceColumns:
        """Return the columns that the configuration names, else those with the usual names.

        Raises:
            DataError: A column is not there, or none has a usual name.
        """
        names = sorted(columns)
        found = {what: find_column(keys, f"{what}_key", names, file, *usual) for what, usual in _USUAL.items()}
        more = {what: found[what] for what in ("prompt", "system", "tools")}
        if keys.takes_judged and found["completion"] is not None and found["label"] is not None:
            return cls(completion=found["completion"], label=found["label"], **more)
        if keys.takes_judged and found["label"] is not None and TOKENS in names and LABELS in names:
            return cls(completion=TOKENS, label=found["label"])
        if found["chosen"] is not None and found["rejected"] is not None:
            margin = found["margin"] if keys.takes_margins else None
            return cls(chosen=found["chosen"], rejected=found["rejected"], margin=margin, **more)
        if all(f"{which}_{column}" in names for which in ("chosen", "rejected") for column in (TOKENS, LABELS)):
            return cls(chosen=f"chosen_{TOKENS}", rejected=f"rejected_{TOKENS}")
        there = ", ".join(names) or "(none)"
        if keys.takes_judged:
            fix = "name the columns: prompt_key, completion_key and label_key; or chosen_key and rejected_key."
            raise DataError(f"no columns with judged answers among {there}.", fix, file=file)
        fix = "name the columns: chosen_key and rejected_key, and prompt_key where answers do not begin with it."
        raise DataError(f"no columns with pairs among {there}.", fix, file=file)


class PreferenceReader:
    """Reads the rows of one file."""

    def __init__(self, columns: PreferenceColumns, system_prompt: str | None) -> None:
        """Remember how.

        Args:
            columns: Of the file.
            system_prompt: System message of conversations that have none.
        """
        self._columns = columns
        self._system = system_prompt

    def pair(self, row: Mapping[str, Any]) -> Pair:
        """Return the two answers of ``row``, with the margin where a column has it.

        Raises:
            FixableError: If the row cannot be used.
        """
        column, pair = self._columns.margin, self._answers(row)
        return pair if column is None else replace(pair, margin=_margin(row.get(column), column))

    def _answers(self, row: Mapping[str, Any]) -> Pair:
        columns = self._columns
        better, worse = str(columns.chosen), str(columns.rejected)
        chosen, rejected = row.get(better), row.get(worse)
        if chosen == rejected:
            raise FixableError(f"{better!r} and {worse!r} are the same.", "take the row out.")
        if columns.tokens:
            return Pair(read_tokens(row, better, f"chosen_{LABELS}"), read_tokens(row, worse, f"rejected_{LABELS}"))
        prompt = None if columns.prompt is None else row.get(columns.prompt)
        if isinstance(chosen, str) and isinstance(rejected, str) and prompt is None:
            return Pair(PlainAnswer(read_text(row, better)), PlainAnswer(read_text(row, worse)))
        if _whole(chosen) or _whole(rejected):
            return self._whole_pair(row, better, worse)
        if prompt is None:
            fix = "name its column with prompt_key, or let both answers be whole conversations."
            raise FixableError("nothing says what was asked.", fix)
        asked, _ = read_said(row, str(columns.prompt), "user")
        return Pair(self._answered(row, asked, better), self._answered(row, asked, worse))

    def judged(self, row: Mapping[str, Any]) -> list[Judged]:
        """Return the answers of ``row`` with what is thought of them: one, or the two of a pair.

        Raises:
            FixableError: If the row cannot be used.
        """
        columns = self._columns
        if columns.completion is None or columns.label is None:
            pair = self.pair(row)
            return [Judged(pair.chosen, True), Judged(pair.rejected, False)]
        label = row.get(columns.label)
        if not isinstance(label, bool) and label not in (0, 1):
            fix = "write true (desirable) or false."
            raise FixableError(f"{columns.label!r} is {label!r}.", fix)
        if columns.judged_tokens:
            return [Judged(read_tokens(row, TOKENS, LABELS), bool(label))]
        if columns.prompt is None:
            raise FixableError("nothing says what was asked.", "name its column with prompt_key.")
        asked, _ = read_said(row, columns.prompt, "user")
        return [Judged(self._answered(row, asked, columns.completion), bool(label))]

    def _whole_pair(self, row: Mapping[str, Any], better: str, worse: str) -> Pair:
        """Return answers that are whole conversations, which share what was asked."""
        (chosen, chosen_flags), (rejected, rejected_flags) = (
            read_messages(row.get(column), column) for column in (better, worse)
        )
        shared = 0
        while shared < min(len(chosen), len(rejected)) and chosen[shared] == rejected[shared]:
            shared += 1
        if not shared:
            fix = "let both begin with the same messages, or name the column of what was asked with prompt_key."
            raise FixableError(f"{better!r} and {worse!r} have nothing in common.", fix)
        columns = self._columns
        system, tools = system_message(row, columns.system, self._system, chosen), read_tools(row, columns.tools)
        return Pair(
            _conversation(system, chosen, shared, chosen_flags, tools, better),
            _conversation(system, rejected, shared, rejected_flags, tools, worse),
        )

    def _answered(self, row: Mapping[str, Any], asked: list[Message], column: str) -> Conversation:
        said, flags = read_said(row, column, "assistant")
        system = system_message(row, self._columns.system, self._system, asked)
        flags, tools = [*([None] * len(asked)), *flags], read_tools(row, self._columns.tools)
        return _conversation(system, [*asked, *said], len(asked), flags, tools, column)


def _margin(value: Any, column: str) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        fix = "write a number: how much higher the chosen answer is to score; 0 or null for no margin."
        raise FixableError(f"{column!r} is {value!r}.", fix)
    return float(value)


def _whole(answer: Any) -> bool:
    """Whether an answer is a conversation that begins with what was asked."""
    return (
        isinstance(answer, list)
        and bool(answer)
        and isinstance(answer[0], Mapping)
        and (answer[0].get("role", answer[0].get("from")) not in ("assistant", "gpt"))
    )


def _conversation(
    system: list[Message],
    messages: list[Message],
    asked: int,
    flags: list[bool | None],
    tools: list[Any] | None,
    column: str,
) -> Conversation:
    """Return a conversation whose first ``asked`` messages were asked; what the assistant says later is compared."""
    trained = [
        number >= asked and message["role"] == "assistant" and flags[number] is not False
        for number, message in enumerate(messages)
    ]
    if not any(trained):
        raise FixableError(f"{column!r} has no message of the assistant.", "write the answer there.")
    return Conversation([*system, *messages], [*([False] * len(system)), *trained], tools)
