"""What the learner made of sampled tokens, on disk beside the trajectories of a step.

A file of its own: it is known only after the trajectories were stored, and everything else can do without it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_FLOATS = pa.list_(pa.float32())
_PER_TOKEN = ("trained", "advantages", "log_probs", "entropies")
SCHEMA = pa.schema(
    [
        ("group_id", pa.string()),
        ("episode", pa.int64()),
        ("turn", pa.int64()),
        ("trained", pa.list_(pa.bool_())),
        ("advantages", _FLOATS),
        ("log_probs", _FLOATS),
        ("entropies", _FLOATS),
    ]
)
"""Columns of the file, one row per turn."""

_TURNS_AT_A_TIME = 1024
"""Rows that are written together."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What the learner made of the sampled tokens of a turn; one entry per token.

    Attributes:
        trained: Whether the policy loss saw it.
        advantages: Its advantage.
        log_probs: Its log-probability under the trainer's weights before the update; ``None`` where the sampler's were
            taken instead.
        entropies: Of the distribution that it was drawn from, in nats, under the trainer's weights at its update; not a
            number where its row had no gradient. ``None`` where none was kept: the trainer is in another process,
            or the file is from before.
    """

    trained: list[bool]
    advantages: list[float]
    log_probs: list[float] | None
    entropies: list[float] | None = None


def learned_path(trajectories: Path) -> Path:
    """Return where this is of the trajectories of a step: ``trajectories/learned/000012.parquet``."""
    return trajectories.parent / "learned" / f"{trajectories.stem.rpartition('=')[2]}.parquet"


def write_learned(path: Path, turns: Iterable[tuple[str, int, int, Learned]]) -> None:
    """Write one file, whole or not at all.

    Args:
        path: Target; its directory is created.
        turns: Group, episode, turn from 0, and what was made of it: lists or arrays of its tokens.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with pq.ParquetWriter(temporary, SCHEMA, compression="zstd") as file:
            remaining = iter(turns)
            while part := list(islice(remaining, _TURNS_AT_A_TIME)):
                file.write_table(_table(part))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _table(turns: Sequence[tuple[str, int, int, Learned]]) -> pa.Table:
    *keys, learned = zip(*turns, strict=True)
    tokens = [_column([getattr(each, name) for each in learned], SCHEMA.field(name).type) for name in _PER_TOKEN]
    return pa.table([*keys, *tokens], schema=SCHEMA)


def _column(rows: Sequence[Sequence[float] | np.ndarray | None], kind: pa.ListType) -> pa.Array:
    """Return lists as one column.

    Their entries are put in a row first: an object for each would take most of the time.
    """
    ends = np.cumsum([0, *(0 if row is None else len(row) for row in rows)], dtype=np.int32)
    known = [np.asarray(row) for row in rows if row is not None and len(row)]
    values = pa.array(np.concatenate(known or [np.zeros(0)]).astype(kind.value_type.to_pandas_dtype()))
    missing = pa.array([row is None for row in rows], pa.bool_())
    return pa.ListArray.from_arrays(ends, values, type=kind, mask=missing)


def read_learned(path: Path, group_id: str, episode: int) -> dict[int, Learned]:
    """Return what was made of an episode: turn, from 0, → its tokens. Empty where nothing was stored or learnt."""
    try:
        found = pq.read_table(path, filters=[("group_id", "=", group_id), ("episode", "=", episode)])
    except (FileNotFoundError, pa.ArrowException):
        return {}
    return {
        row["turn"]: Learned(row["trained"], row["advantages"], row["log_probs"], row.get("entropies"))
        for row in found.to_pylist()
    }
