"""A finished run that several tests look at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.terminal.programs import command
from tests.terminal.terminal import Terminal


@dataclass(frozen=True)
class Seen:
    """A run to its end: where it was started, its exit status, what was on the screen, and what it left there."""

    folder: Path
    status: int
    shown: tuple[str, ...]
    left: str
    written: bytes


def run_to_its_end(
    name: str,
    folder: Path,
    *more: str,
    rows: int,
    columns: int,
    resized: bool = False,
    cold: bool = False,
    **variables: str,
) -> Seen:
    """Run a program (``more`` is added to its command line); check that it gives the terminal back."""
    with Terminal(command(name, *more), folder, rows=rows, columns=columns, cold=cold, **variables) as terminal:
        if resized:
            terminal.see("roll")  # the display has begun
            terminal.resize(24, 80)
        status = terminal.finish()
        terminal.assert_given_back()
        return Seen(folder, status, terminal.shown, terminal.left_behind, terminal.written)


@pytest.fixture(scope="package")
def sokoban(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """The agentic example on the terminal everybody has."""
    return run_to_its_end("agentic", tmp_path_factory.mktemp("sokoban"), rows=24, columns=80, cold=True)
