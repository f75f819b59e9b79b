"""Data files as rows: JSON, JSONL, CSV and parquet, with the place of every row.

Rows live in memory as a ``datasets.Dataset``, about as large as the file. JSON rows stay the text they were: Arrow's
type inference would turn the answer ``"2024-01-01"`` into a date, refuse a column with both ``5`` and ``"5"``, and give
each mapping the keys of all others. CSV cells stay text for the same reason (``007`` is not 7). Nothing is cached on
disk, so a file that changed is never served as it was.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from roll.common.spelling import nearest
from roll.data.errors import DataError, Unit
from roll.data.json_text import parse_json
from roll.data.report import FileCounts, LoadReport

if TYPE_CHECKING:
    import datasets

Row = dict[str, Any]

_BATCH: Final = 1000
_ONE_PER_LINE: Final = "write one JSON object per line, or the whole file as one JSON array."


@dataclass(frozen=True, slots=True)
class DataFile:
    """The rows of one file that could be parsed.

    Attributes:
        name: How messages and keys name the file.
        unit: Whether places are lines or rows.
        columns: The columns that any row has.
        numbers: Place of each row in the file, counted from 1.
        data: The rows: a column each, or one column ``text`` with JSON.
        is_json: Whether ``data`` holds JSON.
    """

    name: str
    unit: Unit
    columns: frozenset[str]
    numbers: np.ndarray
    data: datasets.Dataset
    is_json: bool = False

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.numbers)

    def __getitem__(self, index: int) -> Row:
        """Return row ``index``, counted from 0, as plain values."""
        row = self.data[index]
        return json.loads(row["text"]) if self.is_json else row

    def __iter__(self) -> Iterator[Row]:
        """Yield all rows; faster than asking for one at a time."""
        for batch in self.data.iter(batch_size=_BATCH):
            if self.is_json:
                yield from map(json.loads, batch["text"])
            else:
                for values in zip(*batch.values(), strict=True):
                    yield dict(zip(batch, values, strict=True))

    def place(self, index: int) -> int:
        """Return the line or row number of row ``index`` in the file."""
        return int(self.numbers[index])


def open_file(path: Path, name: str, report: LoadReport, max_rows: int | None = None) -> DataFile:
    """Read a file; rows that cannot be parsed go to ``report``.

    Args:
        path: A ``.json``, ``.jsonl``, ``.csv`` or ``.parquet`` file.
        name: How messages and keys name it.
        report: Counts the rows; raises at the first bad one unless they are skipped.
        max_rows: Read only so many rows from the start.

    Raises:
        DataError: If the file is not there, has another format or no rows, or a row cannot be parsed.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        kind = f"the extension {path.suffix!r}" if path.suffix else "no extension"
        fix = f"rename or convert it to one of {', '.join(_READERS)}; other sources go through `custom_cls`."
        raise DataError(f"a file with {kind} cannot be read.", fix, file=name)
    if not path.is_file():
        raise _missing(path, name)
    report.files.append(FileCounts(name))
    try:
        file = reader(path, name, report, max_rows)
    except UnicodeDecodeError as error:
        raise DataError(f"not valid UTF-8 (byte {error.start}).", "convert the file to UTF-8.", file=name) from error
    counts = report.files[-1]
    counts.read = len(file) + counts.skipped
    if not counts.read:
        raise DataError("the file has no rows.", "take it out of `file_name`, or write it again.", file=name)
    return file


def _missing(path: Path, name: str) -> DataError:
    folder = path.parent
    if not folder.is_dir():
        return DataError("no such file.", f"there is no folder {folder} either; give an existing path.", file=name)
    close = nearest(path.name, [entry.name for entry in folder.iterdir()])
    guess = f"did you mean {folder / close}?" if close else f"give a path that exists (from {Path.cwd()})."
    return DataError("no such file.", guess, file=name)


def _read_json(path: Path, name: str, report: LoadReport, max_rows: int | None) -> DataFile:
    with path.open("rb") as stream:
        start = stream.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    return (_read_array if start.startswith(b"[") else _read_lines)(path, name, report, max_rows)


def _read_array(path: Path, name: str, report: LoadReport, max_rows: int | None) -> DataFile:
    try:
        rows = parse_json(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        what = f"not valid JSON: {error.msg} (column {error.colno})."
        raise DataError(what, "correct it there.", file=name, line=error.lineno) from error
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        raise DataError(f"not usable JSON: {error}.", "correct it there.", file=name) from error
    collected = _JsonRows(name, "row", report)
    for number, row in enumerate(rows[:max_rows], start=1):
        collected.add(row, json.dumps(row, ensure_ascii=False), number)
    return collected.finish()


def _read_lines(path: Path, name: str, report: LoadReport, max_rows: int | None) -> DataFile:
    collected = _JsonRows(name, "line", report)
    seen = 0
    with path.open("rb") as stream:
        for number, raw in enumerate(stream, start=1):
            raw = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
            if not raw.strip():
                continue
            if seen == max_rows:
                break
            seen += 1
            try:
                text = raw.decode("utf-8").strip()
                row = parse_json(text)
            except UnicodeDecodeError as error:
                what = f"not valid UTF-8 (byte {error.start} of the line)."
                report.bad_row(what, "convert the file to UTF-8.", file=name, line=number, unit="line")
            except json.JSONDecodeError as error:
                what = f"not valid JSON: {error.msg} (column {error.colno})."
                report.bad_row(what, _ONE_PER_LINE, file=name, line=number, unit="line")
            except ValueError as error:
                what = f"not usable JSON: {error}."
                report.bad_row(what, "correct the line.", file=name, line=number, unit="line")
            else:
                collected.add(row, text, number)
    return collected.finish()


class _JsonRows:
    """Collects the objects of a JSON file as text."""

    def __init__(self, name: str, unit: Unit, report: LoadReport) -> None:
        self._name, self._unit, self._report = name, unit, report
        self._columns: set[str] = set()
        self._numbers: list[int] = []
        self._texts: list[str] = []

    def add(self, row: Any, text: str, number: int) -> None:
        if not isinstance(row, dict):
            what = f"a row must be a JSON object, not {type(row).__name__}."
            self._report.bad_row(what, _ONE_PER_LINE, file=self._name, line=number, unit=self._unit)
            return
        self._columns.update(row)
        self._numbers.append(number)
        self._texts.append(text)

    def finish(self) -> DataFile:
        import datasets

        features = datasets.Features({"text": datasets.Value("large_string")})
        data = datasets.Dataset.from_dict({"text": self._texts}, features=features)
        return DataFile(
            self._name, self._unit, frozenset(self._columns), np.array(self._numbers, np.int64), data, is_json=True
        )


def _read_csv(path: Path, name: str, report: LoadReport, max_rows: int | None) -> DataFile:
    import datasets

    numbers: list[int] = []
    rows: list[list[str | None]] = []
    with path.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream, strict=True)
        header = _csv_header(reader, name)
        for number, cells in _csv_records(reader, name, report):
            if len(numbers) + report.files[-1].skipped == max_rows:
                break
            if len(cells) != len(header):
                what = f"{len(cells)} cells where the header has {len(header)} columns."
                fix = 'put cells that contain commas or line breaks in double quotes (a quote inside is "").'
                report.bad_row(what, fix, file=name, line=number, unit="line")
                continue
            numbers.append(number)
            rows.append([cell or None for cell in cells])
    columns = zip(*rows, strict=True) if rows else ([] for _ in header)
    features = datasets.Features({column: datasets.Value("large_string") for column in header})
    data = datasets.Dataset.from_dict(dict(zip(header, map(list, columns), strict=True)), features=features)
    return DataFile(name, "line", frozenset(header), np.array(numbers, np.int64), data)


def _csv_header(reader: Any, name: str) -> list[str]:
    header = next(reader, None)
    if not header:
        raise DataError("the file has no header.", "name the columns in its first line.", file=name, line=1)
    twice = sorted({column for column in header if header.count(column) > 1})
    if twice:
        raise DataError(f"the header names {', '.join(twice)} twice.", "rename one of them.", file=name, line=1)
    return list(header)


def _csv_records(reader: Any, name: str, report: LoadReport) -> Iterator[tuple[int, list[str]]]:
    """Yield the line on which each record begins, and its cells."""
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "unexpected end" in str(error):
                # Everything after the quote was taken for one cell: no row to skip, but the rest of the file.
                what = "a double quote opens in this record and is never closed."
                raise DataError(
                    what, 'close it, or write a quote inside a cell as "".', file=name, line=number
                ) from error
            report.bad_row(f"not valid CSV: {error}.", "correct it there.", file=name, line=number, unit="line")
            continue
        if cells:
            yield number, cells


def _read_parquet(path: Path, name: str, report: LoadReport, max_rows: int | None) -> DataFile:
    import datasets
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        what = f"not a parquet file that can be read: {str(error).splitlines()[0]}"
        raise DataError(what, "write it again, or give it the extension of its format.", file=name) from error
    if max_rows is not None:
        table = table.slice(0, max_rows)
    data = datasets.Dataset(datasets.table.InMemoryTable(table))
    return DataFile(name, "row", frozenset(data.column_names), np.arange(1, len(data) + 1), data)


_READERS: Final[dict[str, Callable[[Path, str, LoadReport, int | None], DataFile]]] = {
    ".json": _read_json,
    ".jsonl": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
