"""Data sets of a class of one's own (``custom_cls``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from roll.config.errors import FixableError
from roll.config.objects import load_object
from roll.config.worker import DataArgs
from roll.data.errors import DataError, Unit
from roll.data.report import FileCounts, LoadReport


class CustomRows:
    """The rows of any object with ``__len__`` and ``__getitem__(index) -> row``."""

    unit: Unit = "row"

    def __init__(self, name: str, data: Any, max_rows: int | None = None) -> None:
        """Check that ``data`` is a data set.

        Args:
            name: How messages and keys name it.
            data: The object.
            max_rows: Use only so many rows from the start.

        Raises:
            DataError: If it lacks a method, is empty, or its rows are not mappings.
        """
        missing = [method for method in ("__len__", "__getitem__") if not hasattr(data, method)]
        if missing:
            what = f"{type(data).__name__} has no {' and no '.join(missing)}."
            raise DataError(what, "offer the number of rows by `__len__`, and row i by `__getitem__(i)`.", file=name)
        self.name = name
        self._data = data
        self._length = len(data) if max_rows is None else min(len(data), max_rows)
        if not self._length:
            raise DataError(
                "the data set has no rows.", "look at its `__len__` and the arguments in `kwargs`.", file=name
            )
        self.columns = frozenset(self[0])

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._length

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        """Return row ``index``.

        Raises:
            DataError: If it is not a mapping of column names.
        """
        row = self._data[index]
        if not isinstance(row, Mapping):
            what = f"row {index} is {type(row).__name__}, not a mapping of columns."
            fix = 'return a dict like {"prompt": …, "ground_truth": …, "tag": …}'
            extra = "; of a DatasetDict, pick a split (`split: train` in `kwargs`)." if isinstance(row, str) else "."
            raise DataError(what, fix + extra, file=self.name)
        return row

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """Yield all rows."""
        return (self[index] for index in range(self._length))

    def place(self, index: int) -> int:
        """Return the number of row ``index``, counted from 1."""
        return index + 1


def open_custom(args: DataArgs, report: LoadReport) -> CustomRows:
    """Build the data set that ``custom_cls`` names.

    It is called with ``kwargs``, and with ``file_name`` (a list) where the section names files.

    Raises:
        DataError: If it cannot be found, called or used.
    """
    assert args.custom_cls is not None
    path, name, kwargs = args.custom_cls.path, args.custom_cls.name, dict(args.custom_cls.kwargs)
    if args.file_name:
        kwargs["file_name"] = list(args.file_name)
    try:
        factory = load_object(path, name)
    except FixableError as error:
        raise DataError(f"`custom_cls`: {error.message}", error.fix) from error
    try:
        data = factory(**kwargs)
    except Exception as error:
        shown = ", ".join(f"{key}={value!r}" for key, value in kwargs.items())
        what = f"`custom_cls`: {name}({shown}) raised {type(error).__name__}: {error}"
        raise DataError(what, f"correct {name} in {path}, or its `kwargs`.") from error
    rows = CustomRows(name, data, args.max_samples)
    report.files.append(FileCounts(name, read=len(rows)))
    return rows
