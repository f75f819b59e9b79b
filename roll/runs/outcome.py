"""How a run ended, written in its folder at its end. One that was killed leaves nothing, which says it too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

from roll.runs.lock import is_held

OUTCOME: Final = "outcome.json"


class State(StrEnum):
    """How a run stands."""

    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    """A person or the system stopped it, with or without a last word."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a run.

    Attributes:
        state: How it ended.
        ended: When: ISO 8601.
        message: What ended it, for a run that failed.
    """

    state: State
    ended: str
    message: str = ""


@contextmanager
def outcome_recorded(folder: Path, begun: Callable[[], bool]) -> Iterator[None]:
    """Write how what happens inside ended.

    Args:
        folder: The folder of the run.
        begun: Whether the run has taken the folder for its own; before that nothing is written.
    """
    try:
        yield
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt | asyncio.CancelledError)
        if begun():
            _write(folder, State.INTERRUPTED if stopped else State.FAILED, "" if stopped else str(error))
        raise
    if begun():
        _write(folder, State.FINISHED, "")


def forget_outcome(folder: Path) -> None:
    """Let a run that goes on be one that has not ended."""
    (folder / OUTCOME).unlink(missing_ok=True)


def read_outcome(folder: Path) -> Outcome | None:
    """Return how the run in ``folder`` ended, ``None`` if it has not said so."""
    try:
        said = json.loads((folder / OUTCOME).read_text(encoding="utf-8"))
        return Outcome(State(said["state"]), str(said["ended"]), str(said.get("message", "")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def state_of(folder: Path) -> State:
    """Return how the run in ``folder`` stands; one that is gone without a word was interrupted."""
    if is_held(folder):
        return State.RUNNING
    outcome = read_outcome(folder)
    return State.INTERRUPTED if outcome is None else outcome.state


def _write(folder: Path, state: State, message: str) -> None:
    outcome = Outcome(state, datetime.now(UTC).isoformat(timespec="seconds"), message)
    # On a disk that is full, that is what the run has to tell.
    with suppress(OSError):
        (folder / OUTCOME).write_text(json.dumps(asdict(outcome), indent=2) + "\n", encoding="utf-8")
