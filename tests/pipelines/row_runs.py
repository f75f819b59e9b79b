"""Small runs that learn from the rows of one file, and what their metrics say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roll.config import load
from roll.runs.stored import StoredRun


def row_config(
    pipeline: str, rows: Path, folder: Path, changes: Mapping[str, Any], *, batch: dict[str, int], held_out: int, **keys
) -> Any:
    """Return the configuration of a run of ``pipeline`` with the toy, trained and evaluated on the same file.

    Args:
        pipeline: The kind of run.
        rows: The file.
        folder: Where it writes.
        changes: Further keys, with ``__`` for dots.
        batch: Batch sizes, keys of ``training_args``.
        held_out: How many of the rows it is evaluated on.
        keys: Keys at the top level.
    """
    mapping = {
        "pipeline": pipeline,
        "pretrain": "toy_math",
        "output_dir": str(folder),
        "track_with": ["jsonl"],
        "progress": "none",
        **keys,
        "actor_train": {
            "model_args": {"disable_gradient_checkpointing": True},
            "training_args": batch,
            "data_args": {"file_name": str(rows)},
        },
        "validation": {"data_args": {"file_name": str(rows), "max_samples": held_out}},
    }
    overrides = {"actor_train.training_args.learning_rate": 1e-3, **changes}
    return load(mapping, overrides={key.replace("__", "."): value for key, value in overrides.items()})


def metrics(folder: Path, having: str = "") -> list[dict[str, float]]:
    """Return the metrics of a run without times: every row, or those that have a key."""
    found = [row for row in StoredRun.open(folder).metrics() if not having or having in row]
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in found]
