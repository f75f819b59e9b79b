"""Token ids that were written before: Megatron-Core's indexed data sets, files ``.bin`` and ``.idx``, as rows."""

from __future__ import annotations

import glob
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from roll.data.errors import DataError, Unit
from roll.data.report import FileCounts, LoadReport
from roll.data.rows import TOKENS, TokenIds

PAIR: Final = (".idx", ".bin")
"""The suffixes of the two files of a column: where documents begin, and their tokens."""

_MAGIC: Final = b"MMIDIDX\x00\x00"
_LEVEL: Final = "_document"
_PACKED: Final = "packed_"


class IndexedRows:
    """Documents as rows: each column is a pair of files, and its cells are :class:`roll.data.rows.TokenIds`.

    The files are mapped into memory, and read where a row is asked for.

    Args:
        name: How messages and keys name it.
        data: Megatron-Core's reader of each column.
        documents: First sequence of each document and the one behind its last, ``[rows, 2]``, by column.
    """

    unit: Unit = "row"

    def __init__(self, name: str, data: Mapping[str, Any], documents: Mapping[str, np.ndarray]) -> None:
        self.name = name
        self.columns = frozenset(data)
        self._data = data
        self._documents = documents
        self._length = len(next(iter(documents.values())))

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._length

    def __getitem__(self, index: int) -> Mapping[str, TokenIds]:
        """Return row ``index``, counted from 0."""
        if not 0 <= index < self._length:
            raise IndexError(index)
        return {column: self._cell(column, index) for column in self._data}

    def __iter__(self) -> Iterator[Mapping[str, TokenIds]]:
        """Yield all rows."""
        return (self[index] for index in range(self._length))

    def _cell(self, column: str, index: int) -> TokenIds:
        first, end = self._documents[column][index]
        sequences = [self._data[column][one] for one in range(first, end)]
        return TokenIds(np.concatenate(sequences).tolist() if sequences else ())

    def place(self, index: int) -> int:
        """Return the number of row ``index``, counted from 1."""
        return index + 1


def is_indexed(path: Path) -> bool:
    """Tell whether a path names an indexed data set: one of two files, or what the names of such files begin with."""
    return path.suffix in PAIR or (not path.exists() and bool(_columns(path)))


def open_indexed(path: Path, name: str, report: LoadReport, max_rows: int | None = None) -> IndexedRows:
    """Open an indexed data set.

    Args:
        path: One file of a pair, whose documents are the column ``input_ids``; or the prefix that Megatron and
            MindSpeed-RL gave the pairs of all columns, ``<prefix>_<column>_document`` or
            ``<prefix>_packed_<column>_document``.
        name: How messages and keys name it.
        report: Counts the rows.
        max_rows: Read only so many rows from the start.

    Raises:
        DataError: A file is missing or broken, columns differ in their number of rows, or there are none; or
            Megatron-Core, whose reader is used, is not installed.
    """
    pairs = _columns(path)
    data = {column: _opened(pair, pair.name if len(pairs) > 1 else name) for column, pair in pairs.items()}
    documents = {column: _documents(sequences)[:max_rows] for column, sequences in data.items()}
    counts = {column: len(places) for column, places in documents.items()}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{column} {count}" for column, count in counts.items())
        fix = "write them again together, or name the file of one of them."
        raise DataError(f"its columns have different numbers of documents: {said}.", fix, file=name)
    rows = IndexedRows(name, data, documents)
    if not len(rows):
        raise DataError("the file has no rows.", "take it out of `file_name`, or write it again.", file=name)
    report.files.append(FileCounts(name, read=len(rows)))
    return rows


def _columns(path: Path) -> dict[str, Path]:
    """Return the pair of each column, without its suffix; none where a path names no indexed data set."""
    if path.suffix in PAIR:
        return {TOKENS: path.with_suffix("")}
    pairs = sorted(path.parent.glob(f"{glob.escape(path.name)}_*{_LEVEL}{PAIR[0]}"))
    named = {pair.stem.removeprefix(f"{path.name}_").removesuffix(_LEVEL): pair.with_suffix("") for pair in pairs}
    packed = {column.removeprefix(_PACKED): pair for column, pair in named.items() if column.startswith(_PACKED)}
    found = packed or named
    # Megatron calls the only column after the key of the text that it was made of.
    return {TOKENS: next(iter(found.values()))} if len(found) == 1 else found


def _opened(pair: Path, name: str) -> Any:
    for suffix in PAIR:
        file = pair.with_name(pair.name + suffix)
        if not file.is_file():
            what = f"there is no file {file}; an indexed data set has two, {' and '.join(PAIR)}."
            raise DataError(what, "put both into the folder, or give another path.", file=name)
    index_file, data_file = (pair.with_name(pair.name + suffix) for suffix in PAIR)
    with index_file.open("rb") as stream:
        if stream.read(len(_MAGIC)) != _MAGIC:
            raise DataError(f"{index_file.name} is no index of such a data set.", "write it again.", file=name)
    if not data_file.stat().st_size:
        raise DataError("the file has no rows.", "take it out of `file_name`, or write it again.", file=name)
    reader = _reader(name)
    try:
        sequences = reader(str(pair))
    except (AssertionError, ValueError) as error:
        what = f"Megatron-Core cannot read {index_file.name}: {error}"
        raise DataError(what, "write the data set again.", file=name) from error
    index = sequences.index
    if not np.issubdtype(index.dtype, np.integer):
        what = f"it holds {np.dtype(index.dtype).name} numbers, and token ids are whole ones."
        raise DataError(what, "write the data set again, from a tokenizer.", file=name)
    ends = index.sequence_pointers + index.sequence_lengths.astype(np.int64) * np.dtype(index.dtype).itemsize
    there = data_file.stat().st_size
    if len(ends) and int(ends.max()) > there:
        what = f"{data_file.name} has {there} bytes, where its index names {int(ends.max())}."
        raise DataError(what, "copy both files again.", file=name)
    return sequences


def _documents(sequences: Any) -> np.ndarray:
    """Return where documents begin and end, ``[documents, 2]``, without those whose sequences were left out."""
    borders = np.asarray(sequences.document_indices)
    places = np.stack([borders[:-1], borders[1:]], axis=1)
    return places[places[:, 0] < places[:, 1]]


def _reader(name: str) -> Any:
    try:
        with warnings.catch_warnings():
            # Of kernels for GPUs that are not there, which nothing here computes with.
            warnings.simplefilter("ignore", UserWarning)
            from megatron.core.datasets.indexed_dataset import IndexedDataset
    except ImportError as error:
        what = f"indexed data sets are read with Megatron-Core, which cannot be imported ({error})."
        raise DataError(what, "pip install 'roll-rl[megatron]'.", file=name) from error
    return IndexedDataset
