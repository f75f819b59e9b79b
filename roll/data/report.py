"""What became of the rows of a data set: read, skipped, filtered, cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from roll.data.errors import DataError, Unit

_EXAMPLES = 3


@dataclass(slots=True)
class FileCounts:
    """Rows of one file."""

    name: str
    read: int = 0
    skipped: int = 0


@dataclass(slots=True)
class DomainCounts:
    """Rows of one domain; ``kept`` includes the ``truncated``."""

    kept: int = 0
    filtered: int = 0
    truncated: int = 0


@dataclass(slots=True)
class LoadReport:
    """What became of the rows of a data set.

    Attributes:
        on_bad_row: ``error``: the first row that cannot be used ends loading; ``skip``: it is counted.
        files: Rows read and skipped, per file.
        domains: Rows kept, left out for their length, and cut, per domain.
        examples: The first skipped rows: file, line, and why.
        notes: What else became of them, a sentence each.
    """

    on_bad_row: Literal["error", "skip"] = "error"
    files: list[FileCounts] = field(default_factory=list)
    domains: dict[str, DomainCounts] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def read(self) -> int:
        """Rows found in all files, good or bad."""
        return sum(file.read for file in self.files)

    @property
    def skipped(self) -> int:
        """Rows left out because they could not be used."""
        return sum(file.skipped for file in self.files)

    def bad_row(self, what: str, fix: str, *, file: str, line: int, unit: Unit) -> None:
        """Count a row of the last file that cannot be used.

        Raises:
            DataError: If bad rows are errors.
        """
        error = DataError(
            what, f"{fix} `on_bad_row: skip` leaves such rows out and counts them.", file=file, line=line, unit=unit
        )
        if self.on_bad_row == "error":
            raise error
        self.files[-1].skipped += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(f"{file}, {unit} {line}: {what}")

    def lines(self) -> Iterator[str]:
        """Yield the report as lines of text."""
        for file in self.files:
            skipped = f", {file.skipped} skipped" if file.skipped else ""
            yield f"{file.name}: {file.read} rows{skipped}"
        yield from self.notes
        for name, domain in self.domains.items():
            filtered = f", {domain.filtered} too long and left out" if domain.filtered else ""
            truncated = f", {domain.truncated} too long and cut" if domain.truncated else ""
            yield f"{name}: {domain.kept} prompts{filtered}{truncated}"
        if self.examples:
            yield f"skipped, the first {len(self.examples)} of {self.skipped}:"
            yield from (f"  {example}" for example in self.examples)
