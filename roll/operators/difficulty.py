"""How hard tasks are: the share of tries that failed in what a run stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from roll.operators.registry import Registered, TaskRow
from roll.trajectories.model import Status
from roll.trajectories.store import open_trajectories


def by_pass_rate(
    rows: Sequence[TaskRow],
    *,
    run: str,
    least: float = 0.0,
    most: float = 1.0,
    column: str = "difficulty",
    unknown: str = "keep",
) -> list[TaskRow]:
    """Keep rows whose share of failed tries is within bounds, and write it into a column.

    Args:
        rows: The rows.
        run: Folder of a run, or of an evaluation, that answered the same files and stored its trajectories.
        least: The least share of failures that is kept: above 0 drops what is always solved.
        most: The most: below 1 drops what is never solved.
        column: Where the share is written.
        unknown: ``keep`` or ``drop`` rows that were never tried; kept ones count as half.

    Raises:
        FileNotFoundError: The run stored nothing.
        ValueError: ``unknown`` is another word.
    """
    if unknown not in ("keep", "drop"):
        raise ValueError(f"unknown must be keep or drop, got {unknown!r}")
    failures = _failures(Path(run).expanduser())
    kept = []
    for row in rows:
        share = failures.get(row.key)
        if share is None and unknown == "drop" or share is not None and not least <= share <= most:
            continue
        kept.append(replace(row, columns={**row.columns, column: 0.5 if share is None else share}))
    return kept


def _failures(run: Path) -> dict[str, float]:
    paths = sorted((run / "trajectories").glob("*step=*.parquet"))
    if not paths:
        raise FileNotFoundError(f"{run} has no trajectories/*.parquet: name the output_dir of a run that stored some")
    solved: dict[str, list[bool]] = defaultdict(list)
    for path in paths:
        with open_trajectories(path) as file:
            table = file.read(columns=["initial_hash", "status", "success"])
        for row in table.to_pylist():
            if not Status(row["status"]).is_error:
                solved[row["initial_hash"]].append(row["success"])
    return {key: 1 - sum(tries) / len(tries) for key, tries in solved.items()}


DIFFICULTY: Final = Registered(by_pass_rate, "tasks")
