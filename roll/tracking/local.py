"""Trackers that need no service: JSON lines, TensorBoard and standard output."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from roll.tracking.note_names import NoteNames

METRICS_FILE = "metrics.jsonl"


class JsonlTracker:
    """One JSON object per line, ``{"step": 12, "reward/mean": 0.5}``; written through at once.

    Non-finite values are ``null`` (JSON has no NaN). On resume the lines of later steps and a last line cut short by a
    kill are dropped, so that the file reads as if the run had never stopped. A fresh run that finds the file of an
    earlier one moves it aside to ``metrics.1.jsonl``, ``metrics.2.jsonl``, ….
    """

    def __init__(self, *, log_dir: Path, resume_step: int | None = None, filename: str = METRICS_FILE) -> None:
        self.path = Path(log_dir) / filename
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            if resume_step is None:
                _move_aside(self.path)
            else:
                _drop_after(self.path, resume_step)
        self._file: TextIO | None = self.path.open("a", encoding="utf-8")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Append one line.

        Raises:
            ValueError: The tracker is closed.
        """
        self._write({"step": int(step)} | {name: _finite(value) for name, value in metrics.items()})

    def log_note(self, text: str, step: int) -> None:
        """Append one line with ``note`` in place of metrics.

        Raises:
            ValueError: The tracker is closed.
        """
        self._write({"step": int(step), "note": text})

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._file is None:
            raise ValueError(f"the tracker of {self.path} is closed")
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class TensorboardTracker:
    """TensorBoard event files in ``log_dir`` (``tracker_kwargs.log_dir`` where that is given)."""

    def __init__(self, *, log_dir: str | Path, resume_step: int | None = None, flush_secs: int = 10) -> None:
        # Imported here: it costs over a second, and no other tracker needs it.
        from torch.utils.tensorboard import SummaryWriter

        self.path = Path(log_dir)
        # TensorBoard hides what files of the same directory hold for later steps: the part of a killed run that is
        # done again, or all of an earlier run.
        purge = self._first_step = 0 if resume_step is None else resume_step + 1
        self._note_names = NoteNames()
        self._writer = SummaryWriter(str(self.path), purge_step=purge, flush_secs=flush_secs)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write one scalar per metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, float(value), step)

    def log_config(self, config: Mapping[str, Any], text: str) -> None:
        """Write it as text, which TensorBoard shows as Markdown: four spaces make it a listing."""
        self._writer.add_text("config", "".join(f"    {line}\n" for line in text.splitlines()), self._first_step)
        self._writer.flush()

    def log_note(self, text: str, step: int) -> None:
        """Write it under the tag ``notes``; of several with the same tag and step TensorBoard shows the last."""
        self._writer.add_text(self._note_names.next(step), text, step)
        self._writer.flush()

    def close(self) -> None:
        """Write out what is buffered."""
        self._writer.close()


class StdoutTracker:
    """One compact line per call: ``step 12  reward/mean 0.51  …``."""

    def __init__(
        self,
        *,
        log_dir: Path | None = None,
        resume_step: int | None = None,
        metrics: Sequence[str] | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self._only = None if metrics is None else frozenset(metrics)
        self._stream = stream

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write one line, in the order of ``metrics``."""
        shown = {name: value for name, value in metrics.items() if self._only is None or name in self._only}
        line = "  ".join([f"step {step}", *(f"{name} {float(value):.4g}" for name, value in shown.items())])
        self._write(line)

    def log_note(self, text: str, step: int) -> None:
        """Write one line."""
        self._write(f"step {step}  {text}")

    def _write(self, line: str) -> None:
        # sys.stdout is looked up at each call: a live dashboard replaces it while it owns the screen.
        stream = self._stream or sys.stdout
        stream.write(line + "\n")
        stream.flush()

    def close(self) -> None:
        """Nothing to close."""


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Return the metrics of a :class:`JsonlTracker` file; a last line that is still being written is left out.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A line other than the last is not a JSON object with a step.
    """
    return [record for _, record in _records(Path(path)) if "note" not in record]


def _records(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return each complete line with its record."""
    text = path.read_text(encoding="utf-8")
    found = []
    for number, line in enumerate(text.split("\n")[:-1], start=1):  # what follows the last newline is not complete
        try:
            record = json.loads(line)
            record["step"] += 0
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}, line {number}: not a metrics record ({error}): {line[:80]!r}") from error
        found.append((line, record))
    return found


def _drop_after(path: Path, step: int) -> None:
    """Keep the complete lines of steps up to ``step``; atomic."""
    kept = [line for line, record in _records(path) if record["step"] <= step]
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    os.replace(temporary, path)


def _move_aside(path: Path) -> None:
    """Rename the file of an earlier run to the first free numbered name."""
    number = 1
    while (target := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    path.rename(target)


def _finite(value: float) -> float | int | None:
    """Return a JSON number, or ``None`` for infinities and NaN; integers stay integers."""
    if isinstance(value, int):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else None
