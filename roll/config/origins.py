"""Where the keys of a checked configuration came from; it travels with the configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from roll.config.sources import Sources


@dataclass(frozen=True)
class Origins:
    """How a configuration came about. Two configurations with the same values are equal whatever their origins.

    Attributes:
        sources: The files and overrides that made it.
        written: Native keys that were written under another name, and that name.
        command: The words of the command line that started the run, ``None`` where it was started from Python.
        program: Words that start the same configuration again, in front of overrides: ``roll train sokoban``. Empty for
            a script with ``--config-name``.
        output_dir: Of a stage: what ``output_dir`` was to that command, the folder of the whole run.
    """

    sources: Sources = field(default_factory=Sources, compare=False)
    written: Mapping[str, str] = field(default_factory=dict, compare=False)
    command: Sequence[str] | None = field(default=None, compare=False)
    program: Sequence[str] = field(default=(), compare=False)
    output_dir: Path | None = field(default=None, compare=False)

    def of(self, path: Sequence[str]) -> str:
        """Return where the native key at ``path`` was set: file and line, the command line, or Python."""
        heads = (".".join(path[:depth]) for depth in range(len(path), 0, -1))
        other = next((self.written[head] for head in heads if head in self.written), None)
        if other is None:
            return self.sources.origin(path) or "from Python"
        return f"{self.sources.origin(other.split('.')) or 'from Python'} as {other}"
