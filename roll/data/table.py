"""The prompts of a data set in file order: what loading leaves of the files."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, overload

import numpy as np

from roll.config.errors import FixableError
from roll.data.errors import DataError, Unit
from roll.data.lengths import LengthLimit
from roll.data.prompts import Prompt, PromptPlace
from roll.data.report import LoadReport
from roll.data.rows import RowReader


class RowSource(Protocol):
    """Rows with places: a file, or an object of a class of one's own."""

    @property
    def name(self) -> str:
        """How messages and keys name it."""
        ...

    @property
    def unit(self) -> Unit:
        """Whether places are lines or rows."""
        ...

    @property
    def columns(self) -> frozenset[str]:
        """The columns that any row has."""
        ...

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        """Return row ``index``, counted from 0."""
        ...

    def place(self, index: int) -> int:
        """Return the line or row number of row ``index``, counted from 1."""
        ...


@dataclass(frozen=True, slots=True)
class ReadSource:
    """A source of rows and how its rows are read."""

    rows: RowSource
    reader: RowReader


class PromptTable(Sequence[Prompt]):
    """All usable prompts in file order. Rows are checked; tokens are made when a prompt is asked for.

    Attributes:
        domains: For each domain of the configuration, the indices of its prompts, ascending.
        digests: A checksum of each domain's rows and their order; domains without rows have none.
        report: What became of the rows.
    """

    def __init__(
        self,
        sources: Sequence[ReadSource],
        places: np.ndarray,
        tag_domains: Mapping[str, str],
        domains: Mapping[str, np.ndarray],
        digests: Mapping[str, str],
        limit: LengthLimit,
        report: LoadReport,
    ) -> None:
        """Keep what loading found.

        Args:
            sources: Where rows come from.
            places: Source and row of each prompt, ``[prompts, 2]``.
            tag_domains: The domain of each tag.
            domains: See the attribute.
            digests: See the attribute.
            limit: Length of the prompts.
            report: See the attribute.
        """
        self._sources = sources
        self._places = places
        self._tag_domains = tag_domains
        self._limit: LengthLimit | None = limit
        self.domains = dict(domains)
        self.digests = dict(digests)
        self.report = report

    def __len__(self) -> int:
        """Return the number of prompts."""
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Prompt]: ...
    def __getitem__(self, index: int | slice) -> Prompt | list[Prompt]:
        """Return the prompt at ``index``, counted from 0.

        Raises:
            DataError: If a data set class of one's own returns another row than at the start.
        """
        if isinstance(index, slice):
            return [self._prompt(number) for number in range(*index.indices(len(self)))]
        return self._prompt(index)

    def read_with(self, limit: LengthLimit | None) -> PromptTable:
        """Return the same prompts with another limit, which makes their tokens.

        Args:
            limit: The limit. ``None``: without, they can be sent to another process, which gives them one again.
        """
        other = copy.copy(self)
        other._limit = limit
        text_of = _nothing if limit is None else limit.prompt_text
        other._sources = [ReadSource(each.rows, each.reader.with_text_of(text_of)) for each in self._sources]
        return other

    def place(self, index: int) -> PromptPlace:
        """Return the prompt at ``index`` without its text; no tokens are made."""
        number, row_index = (int(value) for value in self._places[index])
        source = self._sources[number]
        tag = source.reader.read(source.rows[row_index]).tag
        key = f"{source.rows.name}:{source.rows.place(row_index)}"
        return PromptPlace(index, key, self._tag_domains[tag], tag)

    def _prompt(self, index: int) -> Prompt:
        assert self._limit is not None, "read_with comes first"
        number, row_index = (int(value) for value in self._places[index])
        source = self._sources[number]
        row = source.rows[row_index]
        place = source.rows.place(row_index)
        try:
            parsed = source.reader.read(row)
            messages, ids = self._limit.beside(parsed.pictures).fit(parsed.messages, parsed.prompt_ids)
            ids, pictures = self._limit.expanded(ids, parsed.pictures)
            domain = self._tag_domains[parsed.tag]
        except (FixableError, KeyError) as error:
            what = error.message if isinstance(error, FixableError) else f"the tag {error} belongs to no domain."
            fix = error.fix if isinstance(error, FixableError) else "return the same row every time."
            raise DataError(what, fix, file=source.rows.name, line=place, unit=source.rows.unit) from error
        return Prompt(
            key=f"{source.rows.name}:{place}",
            domain=domain,
            tag=parsed.tag,
            messages=messages,
            prompt_ids=ids,
            ground_truth=parsed.ground_truth,
            row=source.reader.without_pictures(row),
            pictures=tuple(pictures),
        )


def _nothing(ids: Sequence[int]) -> str:
    """Stand in for what says the text of token ids, where nobody asks."""
    return ""
