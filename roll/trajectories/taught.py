"""What a teacher said of tokens, as files: its likeliest tokens with their log-probs, and that of all others together.

One row per sequence: ``input_ids``, the ``places`` in it that were sampled and are learned, and for each of these the
``teacher_ids`` (k of them) and ``teacher_log_probs`` (k, or k + 1 with the log-prob of all others as the last). Any
program can write such files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from roll.trajectories.errors import TaughtRowError

SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("places", pa.list_(pa.int32())),
        ("teacher_ids", pa.list_(pa.list_(pa.int32()))),
        ("teacher_log_probs", pa.list_(pa.list_(pa.float32()))),
    ]
)
"""Columns of the file."""

_TOLERANCE = 1e-3
"""How far the probabilities that a row names may be above 1 by rounding."""


@dataclass(frozen=True, slots=True)
class TaughtRow:
    """A sequence, and what a teacher said of some tokens of it.

    Attributes:
        input_ids: ``[sequence]`` int64.
        places: ``[n]`` int64, ascending: which tokens are learned; never the first.
        teacher_ids: ``[n, k]`` int64.
        teacher_log_probs: ``[n, k + 1]`` float32; the last is of all other tokens together.
    """

    input_ids: np.ndarray
    places: np.ndarray
    teacher_ids: np.ndarray
    teacher_log_probs: np.ndarray


def taught_path(output_dir: Path, step: int) -> Path:
    """Return where what teachers said in a step is stored: ``teacher/step=000012.parquet``."""
    return output_dir / "teacher" / f"step={step:06d}.parquet"


def write_taught(path: Path, rows: Iterable[TaughtRow]) -> None:
    """Write one file, whole or not at all; its folder is created."""
    columns = [
        {
            "input_ids": row.input_ids.tolist(),
            "places": row.places.tolist(),
            "teacher_ids": row.teacher_ids.tolist(),
            "teacher_log_probs": row.teacher_log_probs.tolist(),
        }
        for row in rows
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        pq.write_table(pa.Table.from_pylist(columns, schema=SCHEMA), temporary, compression="zstd")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_taught(paths: Sequence[Path], *, vocabulary: int, max_length: int) -> tuple[list[TaughtRow], str]:
    """Read files; every row is checked.

    Args:
        paths: The files, in the order of their rows.
        vocabulary: Token ids are below it.
        max_length: Most tokens of a row.

    Returns:
        The rows, and a checksum of them.

    Raises:
        TaughtRowError: A file cannot be read, or a row is not what the columns say.
    """
    rows, digest, widths = [], hashlib.sha256(), set()
    for path in paths:
        try:
            table = pq.read_table(path)
        except (OSError, pa.ArrowException) as error:
            raise TaughtRowError(path, None, f"cannot be read as parquet ({error})") from error
        missing = ", ".join(name for name in SCHEMA.names if name not in table.column_names)
        if missing:
            raise TaughtRowError(path, None, f"has no column {missing} (it has {', '.join(table.column_names)})")
        for number, columns in enumerate(table.to_pylist(), start=1):
            try:
                row = _row(columns, vocabulary, max_length)
            except (ValueError, TypeError) as error:
                raise TaughtRowError(path, number, str(error)) from error
            widths.add(row.teacher_ids.shape[1])
            if len(widths) > 1:
                raise TaughtRowError(path, number, f"k is {row.teacher_ids.shape[1]} here and was another before")
            for array in (row.input_ids, row.places, row.teacher_ids, row.teacher_log_probs):
                digest.update(np.ascontiguousarray(array).tobytes())
            rows.append(row)
    if not rows:
        raise TaughtRowError(paths[0], None, "has no rows")
    return rows, digest.hexdigest()


def _row(columns: dict[str, Any], vocabulary: int, max_length: int) -> TaughtRow:
    ids, places = (np.asarray(columns[name], dtype=np.int64) for name in ("input_ids", "places"))
    named = np.asarray(columns["teacher_ids"], dtype=np.int64)
    log_probs = np.asarray(columns["teacher_log_probs"], dtype=np.float64)
    if not len(places):
        raise ValueError("no token is learned: places is empty")
    if len(ids) > max_length:
        raise ValueError(f"it has {len(ids)} tokens, more than sequence_length {max_length}")
    if places.min() < 1 or places.max() >= len(ids) or (np.diff(places) < 1).any():
        raise ValueError("places must ascend, begin at 1 or later and lie inside of input_ids")
    if named.ndim != 2 or len(named) != len(places) or not named.shape[1]:
        raise ValueError("teacher_ids must be k token ids for each of places")
    if min(ids.min(), named.min()) < 0 or max(ids.max(), named.max()) >= vocabulary:
        raise ValueError(f"a token id is not below {vocabulary}, the size of the student's vocabulary")
    if any(len(set(row)) < len(row) for row in named.tolist()):
        raise ValueError("teacher_ids names a token twice for one place")
    k = named.shape[1]
    if log_probs.ndim != 2 or len(log_probs) != len(places) or log_probs.shape[1] not in (k, k + 1):
        raise ValueError(f"teacher_log_probs must be {k} or {k + 1} numbers for each of places")
    mass = np.exp(log_probs).sum(1)
    if np.isnan(log_probs).any() or (mass > 1 + _TOLERANCE).any():
        raise ValueError("teacher_log_probs are no log-probs: together they are more than 1")
    if log_probs.shape[1] == k:
        rest = np.log(np.maximum(1 - mass, np.finfo(np.float32).tiny))
        log_probs = np.concatenate((log_probs, rest[:, None]), axis=1)
    return TaughtRow(ids, places, named, log_probs.astype(np.float32))
