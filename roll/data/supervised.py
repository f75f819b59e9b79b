"""From the ``data_args`` section to tokens to imitate: every row read, checked and encoded before a model loads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

import numpy as np

from roll.config.demonstration_columns import DemonstrationColumns
from roll.config.errors import FixableError
from roll.config.worker import DataArgs
from roll.data.errors import DataError
from roll.data.loading import Source, canonical, open_sources
from roll.data.order import RowOrder
from roll.data.report import DomainCounts, LoadReport
from roll.data.supervised_rows import Columns, Demonstration, DemonstrationReader
from roll.rendering.supervised import TokenSequence

ROWS = "rows"
"""The one domain of demonstrations."""

EncodeDemonstration = Callable[[Demonstration], list[TokenSequence]]
"""A row's tokens: one sequence, or several where a template rewrites answers."""

AddRow = Callable[[Mapping[str, Any]], None]
"""Adds a row to a table."""


class DemonstrationTable:
    """The tokens of all usable rows of a section, in file order; four bytes and a flag per token.

    Args:
        args: The ``data_args`` section.
        limit: Most tokens of a sequence.

    Attributes:
        report: What became of the rows.
        digest: A checksum of the rows and their order.
    """

    def __init__(self, args: DataArgs, limit: int) -> None:
        self._args, self._limit = args, limit
        self._counts = DomainCounts()
        self.report = LoadReport(args.on_bad_row, domains={ROWS: self._counts})
        self.digest = ""
        self._rows: list[list[tuple[np.ndarray, np.ndarray]]] = []
        self.tokens = 0
        self.trained_tokens = 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def fitted(self, sequences: list[TokenSequence]) -> list[TokenSequence]:
        """Return the sequences of a row, cut if they must be; none where the row is left out.

        Raises:
            FixableError: If one is too long, or nothing of one is imitated.
        """
        limit, end = self._limit, self._args.truncation
        longest = max(map(len, sequences), default=0)
        if longest > limit:
            if self._args.filter_overlong_prompts:
                self._counts.filtered += 1
                return []
            if end == "error":
                raise FixableError(
                    f"the row has {longest} tokens, {longest - limit} more than `sequence_length`.",
                    "raise `sequence_length`, set `truncation: right` (or `left`), or `filter_overlong_prompts: true`.",
                )
            sequences = [_cut(one, limit, end) for one in sequences]
            self._counts.truncated += 1
        kept = [one for one in sequences if any(one.trained)]
        if not kept:
            raise FixableError(
                "no token is left to imitate.", "give the row an answer with text, within `sequence_length` tokens."
            )
        return kept

    def add(self, sequences: list[TokenSequence]) -> None:
        """Append a row."""
        self._counts.kept += 1
        self._rows.append([(np.array(one.token_ids, np.int32), np.array(one.trained, np.bool_)) for one in sequences])
        self.tokens += sum(map(len, sequences))
        self.trained_tokens += sum(sum(one.trained) for one in sequences)

    def sequences(self, row: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the token ids and the flags of each sequence of a row, ``[tokens]``."""
        return self._rows[row]


Table = TypeVar("Table", bound=DemonstrationTable)


def load_demonstrations(
    args: DataArgs, keys: DemonstrationColumns, limit: int, encode: EncodeDemonstration
) -> DemonstrationTable:
    """Read all rows of a section.

    Args:
        args: The ``data_args`` section.
        keys: Which columns hold what.
        limit: Most tokens of a sequence.
        encode: Makes tokens of a row.

    Raises:
        DataError: If a file or a row cannot be used; the message names place and fix.
    """
    table = DemonstrationTable(args, limit)

    def of_file(rows: Source) -> AddRow:
        reader = DemonstrationReader(Columns.of(keys, rows.columns, rows.name), args.system_prompt)

        def add(row: Mapping[str, Any]) -> None:
            if sequences := table.fitted(encode(reader.read(row))):
                table.add(sequences)

        return add

    fill(table, open_sources(args, table.report), of_file)
    return table


def fill(table: DemonstrationTable, sources: Iterable[Source], of_file: Callable[[Source], AddRow]) -> None:
    """Add the rows of files to a table, and set its checksum.

    Args:
        table: Gets the rows; its report, those that cannot be used.
        sources: The files.
        of_file: Returns what adds a row of a file to the table, or leaves it out; raises ``FixableError`` if it cannot
            be used.

    Raises:
        DataError: If a file or a row cannot be used, or none is left; the message names place and fix.
    """
    report, digest = table.report, hashlib.blake2b(digest_size=16)
    for rows in sources:
        add = of_file(rows)
        for index, row in enumerate(rows):
            before = len(table)
            try:
                written = canonical(row)
                add(row)
            except FixableError as error:
                report.bad_row(error.message, error.fix, file=rows.name, line=rows.place(index), unit=rows.unit)
                continue
            if len(table) > before:
                digest.update(written)
    if not len(table):
        raise DataError("no row is left:\n    " + "\n    ".join(report.lines()), "look at the reasons.")
    table.digest = digest.hexdigest()


def _cut(one: TokenSequence, limit: int, end: str) -> TokenSequence:
    if len(one) <= limit:
        return one
    kept = slice(None, limit) if end == "right" else slice(-limit, None)
    trained = one.trained[kept]
    return TokenSequence(one.token_ids[kept], [False, *trained[1:]])


class DemonstrationSet(Generic[Table]):
    """The rows of a run in an endless order that only the seed decides.

    Attributes:
        table: The rows.
    """

    def __init__(self, table: Table, *, seed: int, shuffle: bool) -> None:
        self.table = table
        self._order = RowOrder({ROWS: np.arange(len(table))}, {ROWS: table.digest}, seed=seed, shuffle=shuffle)

    def row_at(self, position: int) -> int:
        """Return the number in the table of the row at ``position`` (0, 1, 2, …), epochs included.

        Raises:
            IndexError: If ``position`` is negative.
        """
        return self._order.at(position)

    def state_dict(self, position: int) -> dict[str, Any]:
        """Return a JSON-able record of a run that consumed the rows before ``position``."""
        return self._order.state_dict(position)

    def check_state(self, state: Mapping[str, Any]) -> int:
        """Return the position of a record made by :meth:`state_dict`.

        Raises:
            DataError: If it was made with data in another order; the message names what differs.
        """
        return self._order.check_state(state)
