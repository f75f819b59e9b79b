"""What came of a run: a before/after table, and where everything is with the command that opens it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from roll.tracking.wording import count_steps, format_duration

_ROWS = (
    ("val/success", "validation success", True),
    ("val/reward", "validation reward", False),
    ("val/accuracy", "validation accuracy", True),
    ("val/loss", "validation loss", False),
    ("val/turns", "turns per episode", False),
)
"""Metric, label, and whether it is a share (shown in per cent; its change in percentage points)."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The result of a run.

    Attributes:
        title: Name of the run.
        steps: Training steps complete.
        seconds: Wall time of the whole run.
        before: Metrics of the first evaluation (``val/success``, ``val/reward``, ``val/turns``).
        after: The same of the last one.
        checkpoint: Directory of the last checkpoint.
        checkpoint_command: Command that uses it (resumes the run, evaluates it, …).
        tensorboard: Directory of the TensorBoard log.
        trajectories: Directory of the parquet files.
        pages: Directory of the review of evaluations.
        metrics: The JSON lines file.
        notes: Lines shown at the end.
        python: How to call the interpreter that has everything installed, where ``python`` is another one.
    """

    title: str
    steps: int
    seconds: float
    before: Mapping[str, float] = field(default_factory=dict)
    after: Mapping[str, float] = field(default_factory=dict)
    checkpoint: Path | None = None
    checkpoint_command: str | None = None
    tensorboard: Path | None = None
    trajectories: Path | None = None
    pages: Path | None = None
    metrics: Path | None = None
    notes: tuple[str, ...] = ()
    python: str = "python"

    def places(self) -> list[tuple[str, Path, str]]:
        """Return what there is to open: name, path, command."""
        opener = "open" if sys.platform == "darwin" else "xdg-open"
        found: list[tuple[str, Path, str]] = []
        if self.checkpoint is not None:
            command = self.checkpoint_command or f"ls -lh {_quoted(self.checkpoint)}"
            found.append(("checkpoint", self.checkpoint, command))
        if self.tensorboard is not None:
            program = "tensorboard" if self.python == "python" else f"{self.python} -m tensorboard.main"
            found.append(("TensorBoard log", self.tensorboard, f"{program} --logdir {_quoted(self.tensorboard)}"))
        if self.trajectories is not None:
            command = f"{self.python} -m roll view {_quoted(self.trajectories)}"
            found.append(("trajectories", self.trajectories, command))
        if self.pages is not None:
            found.append(("review", self.pages, f"{opener} {_quoted(self.pages / 'index.html')}"))
        if self.metrics is not None:
            found.append(("metrics", self.metrics, f"tail -n 3 {_quoted(self.metrics)}"))
        return found


def print_summary(summary: RunSummary, console: Console) -> None:
    """Print the before/after table, then each place with its command on one line that can be copied."""
    console.print()
    head = Text().append(f" {summary.title}", style="bold")
    head.append(f"  {count_steps(summary.steps)} in {format_duration(summary.seconds)}", style="dim")
    console.print(head)
    table = before_after_table(summary.before, summary.after)
    if table.row_count:
        console.print(table)
    console.print()
    for name, path, command in summary.places():
        line = Text().append(f" {name:<16}", style="bold").append(_short(path))
        console.print(line, soft_wrap=True)
        console.print(Text(f" {'':<16}$ {command}", style="cyan"), soft_wrap=True)
    for note in summary.notes:
        console.print(Text(f" {note}"), soft_wrap=True)


def before_after_table(before: Mapping[str, float], after: Mapping[str, float]) -> Table:
    """Return the table; a metric that neither evaluation has gets no row."""
    table = Table(box=box.ROUNDED, header_style="dim", border_style="dim")
    table.add_column("")
    for name in ("before", "after", "change"):
        table.add_column(name, justify="right")
    for key, label, is_share in _ROWS:
        if key == "val/turns" and before.get(key) == after.get(key) == 1.0:
            continue  # a problem and its answer: not worth a row
        if key in before or key in after:
            table.add_row(label, *_cells(before.get(key), after.get(key), is_share))
    return table


def _cells(before: float | None, after: float | None, is_share: bool) -> tuple[Text, Text, Text]:
    """Return the three numbers of a row."""

    def shown(value: float | None) -> str:
        return "–" if value is None else f"{value:.1%}" if is_share else f"{value:.2f}"

    if before is None or after is None:
        change = "–"
    else:
        change = f"{100 * (after - before):+.1f} points" if is_share else f"{after - before:+.2f}"
    return Text(shown(before), style="yellow"), Text(shown(after), style="bold green"), Text(change)


def _short(path: Path) -> str:
    """Return the path relative to the working directory where that is below it."""
    absolute = Path(os.path.abspath(path))
    here = Path.cwd()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(absolute)


def _quoted(path: Path) -> str:
    """Return the path as a shell word."""
    return shlex.quote(_short(path))
