"""From the ``data_args`` section to prompts: read, check every row, sort into domains, measure."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roll.config.errors import FixableError
from roll.config.prompt_keys import ANY_TAG
from roll.config.worker import DataArgs
from roll.data.custom import CustomRows, open_custom
from roll.data.dataset import PromptDataset
from roll.data.errors import DataError
from roll.data.files import DataFile, open_file
from roll.data.indexed import IndexedRows, is_indexed, open_indexed
from roll.data.lengths import LengthLimit
from roll.data.operated import Rows, operated
from roll.data.places import data_paths
from roll.data.report import DomainCounts, LoadReport
from roll.data.rows import RowReader
from roll.data.sql_table import SqlTable, open_sql_table
from roll.data.table import PromptTable, ReadSource
from roll.operators import Operator

Source = DataFile | CustomRows | SqlTable | IndexedRows


def load_prompts(
    args: DataArgs,
    domains: Mapping[str, Sequence[str]],
    limit: LengthLimit,
    *,
    seed: int,
    operators: Sequence[Operator] = (),
) -> PromptDataset:
    """Load the prompts that a run trains on.

    Args:
        args: The ``data_args`` section.
        domains: The tags of the rows that belong to each domain; ``*`` are all that no other domain names.
        limit: How long a prompt may be, and how it becomes tokens.
        seed: Seed of the order.
        operators: What is done to the rows before they are checked.

    Raises:
        DataError: If the files, a row, a tag, a length or the shares are wrong; the message names place and fix.
    """
    table = load_table(args, domains, limit, operators)
    return PromptDataset(table, seed=seed, probabilities=args.domain_interleave_probs, shuffle=args.shuffle)


def load_table(
    args: DataArgs, domains: Mapping[str, Sequence[str]], limit: LengthLimit, operators: Sequence[Operator] = ()
) -> PromptTable:
    """Read all rows of a section, check each, and sort them into domains: in file order, each once, as evaluations do.

    ``domain_interleave_probs`` and ``shuffle`` have no effect on them. For the arguments see :func:`load_prompts`.

    Raises:
        DataError: See :func:`load_prompts`.
    """
    tag_domains = _tag_domains(domains)
    report = LoadReport(args.on_bad_row, domains={name: DomainCounts() for name in domains})
    only = next(iter(domains)) if len(domains) == 1 else None
    if only is not None:
        # Rows of files without a tag column carry the name of the domain.
        tag_domains.setdefault(only, only)
    check = _Check(tag_domains, limit, report, filter_overlong=args.filter_overlong_prompts)
    sources: list[ReadSource] = []
    for rows in operated(open_sources(args, report), operators, report):
        reader = RowReader(args, rows.columns, file=rows.name, only_domain=only, text_of=limit.prompt_text)
        check.read(len(sources), rows, reader)
        sources.append(ReadSource(rows, reader))
    return check.finish(sources)


def open_sources(args: DataArgs, report: LoadReport) -> Iterable[Source]:
    """Open the files of a section one after the other; rows that cannot be parsed go to ``report``.

    Raises:
        DataError: There are none, or one cannot be read.
    """
    if args.custom_cls is not None:
        return [open_custom(args, report)]
    if not args.file_name:
        raise DataError("no data: `file_name` is not set.", "name one or several files, or a `custom_cls`.")
    tables = [name for name in args.file_name if "://" in name]
    paths = data_paths(args)
    again = [str(path) for path, count in Counter(path.resolve() for path in paths).items() if count > 1]
    if again:
        raise DataError(f"`file_name` lists {again[0]} twice.", "list it once; shares are set by domain.")
    named = zip(paths, _short_names(paths), strict=True)
    return itertools.chain(
        (
            (open_indexed if is_indexed(path) else open_file)(path, name, report, args.max_samples)
            for path, name in named
        ),
        (open_sql_table(address, report, args.max_samples) for address in tables),
    )


def _short_names(paths: Sequence[Path]) -> list[str]:
    """Return the names of files, with their folders where names alone would be ambiguous."""
    count = Counter(path.name for path in paths)
    return [path.name if count[path.name] == 1 else str(path) for path in paths]


def _tag_domains(domains: Mapping[str, Sequence[str]]) -> dict[str, str]:
    if not domains:
        raise DataError("there are no domains.", "name at least one in `rewards`.")
    found: dict[str, str] = {}
    for domain, tags in domains.items():
        for tag in tags:
            if found.setdefault(tag, domain) != domain:
                fix = "list it in `tag_included` of one of them."
                raise DataError(f"the tag {tag!r} belongs to two domains, {found[tag]!r} and {domain!r}.", fix)
    return found


class _Check:
    """Goes through all rows once; collects what is usable and everything that is wrong with the rest."""

    def __init__(
        self, tag_domains: Mapping[str, str], limit: LengthLimit, report: LoadReport, *, filter_overlong: bool
    ) -> None:
        self._tag_domains = dict(tag_domains)
        self._limit = limit
        self._report = report
        self._filter = filter_overlong
        self._places: list[tuple[int, int]] = []
        self._members: dict[str, list[int]] = {name: [] for name in report.domains}
        self._digests = {name: hashlib.blake2b(digest_size=16) for name in report.domains}
        self._unknown: Counter[str] = Counter()
        self._unknown_place = ""
        self._overlong = 0
        self._longest = 0
        self._overlong_place = ""

    def read(self, number: int, rows: Rows, reader: RowReader) -> None:
        """Check the rows of source ``number``.

        Raises:
            DataError: At the first row that cannot be used, unless such rows are skipped.
        """
        for index, row in enumerate(rows):
            try:
                self._row((number, index), rows, reader, row)
            except FixableError as error:
                self._report.bad_row(error.message, error.fix, file=rows.name, line=rows.place(index), unit=rows.unit)

    def _row(self, place: tuple[int, int], rows: Rows, reader: RowReader, row: Mapping[str, Any]) -> None:
        written = canonical(row)
        parsed = reader.read(row)
        domain = self._tag_domains.get(parsed.tag)
        if domain is None and ANY_TAG in self._tag_domains:
            domain = self._tag_domains[parsed.tag] = self._tag_domains[ANY_TAG]
        if domain is None:
            self._unknown_place = self._unknown_place or f"{rows.name}, {rows.unit} {rows.place(place[1])}"
            self._unknown[parsed.tag] += 1
            return
        counts = self._report.domains[domain]
        excess = self._limit.beside(parsed.pictures).excess(parsed.messages, parsed.prompt_ids)
        if excess > 0:
            if self._filter:
                counts.filtered += 1
                return
            if self._limit.truncation == "error":
                self._overlong_place = self._overlong_place or f"{rows.name}, {rows.unit} {rows.place(place[1])}"
                self._overlong += 1
                self._longest = max(self._longest, excess + (self._limit.limit or 0))
                return
            if parsed.pictures:
                what = f"the prompt has pictures, and {excess} tokens more than `prompt_length`: it is not cut."
                raise FixableError(what, "set `filter_overlong_prompts: true`, or raise `prompt_length`.")
            if parsed.prompt_ids is None:
                self._limit.check_cut(parsed.messages)
            counts.truncated += 1
        counts.kept += 1
        self._members[domain].append(len(self._places))
        self._places.append(place)
        self._digests[domain].update(written)

    def finish(self, sources: Sequence[ReadSource]) -> PromptTable:
        """Return the usable prompts.

        Raises:
            DataError: If there are tags of no domain, prompts over the limit, or no prompts at all.
        """
        if self._unknown:
            found = ", ".join(f"{tag!r} ({count} rows)" for tag, count in self._unknown.most_common(8))
            raise DataError(
                f"tags that belong to no domain, first in {self._unknown_place}: {found}.",
                "add them to `tag_included` of a domain in `rewards`, or of one of `teachers`. Known: "
                f"{', '.join(self._tag_domains)}.",
            )
        if self._overlong:
            raise DataError(
                f"{self._overlong} prompts are longer than `prompt_length`, {self._limit.limit} tokens, first in "
                f"{self._overlong_place}; the longest has {self._longest}.",
                "set `filter_overlong_prompts: true` to leave them out, `truncation: left` or `right` to cut them, or "
                "raise `prompt_length`.",
            )
        if not self._places:
            raise DataError("no prompt is left:\n    " + "\n    ".join(self._report.lines()), "look at the reasons.")
        return PromptTable(
            sources,
            np.array(self._places, np.int64),
            self._tag_domains,
            {name: np.array(members, np.int64) for name, members in self._members.items()},
            {name: digest.hexdigest() for name, digest in self._digests.items()},
            self._limit,
            self._report,
        )


def canonical(row: Mapping[str, Any]) -> bytes:
    """Return the row as bytes that depend on its values alone.

    Raises:
        FixableError: If it holds text that cannot be written.
    """
    written = json.dumps(row, sort_keys=True, ensure_ascii=True, default=str).encode()
    if b"\\ud" in written:  # a character beyond the first 65,536, or half of the pair that such a one is written as
        for column, value in row.items():
            try:
                json.dumps({column: value}, ensure_ascii=False, default=str).encode()
            except UnicodeEncodeError:
                what = f"{ascii(column)} holds half of a surrogate pair, which is no character: no file can hold it."
                fix = "write the character itself, or both halves of the \\u escape."
                raise FixableError(what, fix) from None
    return written
