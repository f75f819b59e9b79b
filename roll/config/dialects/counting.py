"""How many steps a number of epochs is: the rows of files, counted where the files are here."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from roll.config.dialects.rows import Sets, Unused, whole
from roll.config.errors import FixableError
from roll.config.shipped import shipped_data


def steps_of(epochs: Any, files: Any, batch: Any, key: str, sets: str = "max_steps") -> Sets | Unused:
    """Return the steps of so many passes over files.

    Args:
        epochs: Passes.
        files: A file or several.
        batch: Rows of a step; what is left over at the end of a pass makes no step.
        key: The key that says the steps directly.
        sets: The native key that they are of.

    Raises:
        FixableError: ``epochs`` or ``batch`` is no size.
    """
    if isinstance(epochs, bool) or not isinstance(epochs, int | float) or epochs <= 0:
        raise FixableError("it is no number of passes.", "write a number above 0.")
    names = [files] if isinstance(files, str) else files
    if not isinstance(names, list) or batch is None:
        return Unused(f"rows and batch are not known here, so {sets} stays as it is; set {key}")
    counts = [rows_of(name) for name in names]
    if not counts or any(count is None for count in counts):
        return Unused(f"the files are not here to be counted, so {sets} stays as it is; set {key}")
    total = sum(count for count in counts if count is not None)
    steps = int(total // whole(batch, "the batch size") * epochs)
    note = f"{epochs:g} passes over {total} rows, {batch} a step"
    return Sets({sets: steps}, note=note) if steps else Unused("the files have fewer rows than a step")


def rows_of(name: Any) -> int | None:
    """Return the rows of a file, ``None`` where it is not here or cannot be read."""
    path = shipped_data(Path(str(name)).expanduser())
    if not path.is_file():
        return None
    try:
        if path.suffix == ".parquet":
            # Reads the footer of the file, and no row of it.
            from pyarrow import parquet

            return int(parquet.ParquetFile(path).metadata.num_rows)
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".csv":
            return max(0, sum(1 for _ in csv.reader(text.splitlines())) - 1)
        if text.lstrip().startswith("["):
            return len(json.loads(text))
    except (OSError, ValueError, ImportError):
        return None
    return sum(1 for line in text.splitlines() if line.strip())


def columns_of(name: Any) -> frozenset[str] | None:
    """Return the columns of a parquet file, ``None`` where it is not here or another kind of file."""
    path = shipped_data(Path(str(name)).expanduser())
    if not path.is_file() or path.suffix != ".parquet":
        return None
    from pyarrow import parquet

    try:
        return frozenset(parquet.read_schema(path).names)
    except (OSError, ValueError):
        return None
