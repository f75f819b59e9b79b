"""What people say of episodes: labels and a comment each, kept in one file beside the run."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from roll.common.file_stamp import FileStamp
from roll.config import ConfigError, Problem
from roll.viewer.episodes import Episodes, Row
from roll.viewer.rendering import write_whole

_FORMAT: Final = 1
LONGEST: Final = 10_000
"""Characters of a comment that are kept."""
_LABEL: Final = 60
_LABELS: Final = 20

Place = tuple[str, int, str, int]
"""Phase, step, group and episode: by which a run knows an episode."""


@dataclass(frozen=True, slots=True)
class Note:
    """What somebody said of an episode.

    Attributes:
        phase: ``train`` or ``val``.
        step: Its step.
        group_id: Its group.
        episode: Its index within the group.
        labels: Words that many episodes may share.
        comment: Anything else.
        about: What the episode was, by which a note is not taken for one about another episode of the same name.
    """

    phase: str
    step: int
    group_id: str
    episode: int
    labels: tuple[str, ...] = ()
    comment: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        """Which episode it is about."""
        return self.phase, self.step, self.group_id, self.episode

    def is_about(self, row: Row) -> bool:
        """Whether the episode is the one that was looked at, and not one that a later run put in its place."""
        return self.place == place_of(row) and dict(self.about) == _about(row)


class Notes:
    """The notes of a run. Methods may be called from any thread, and several programs may have the file open.

    Args:
        path: Their file, which need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: FileStamp | None = None
        self._notes: dict[Place, Note] = {}

    def read(self) -> Mapping[Place, Note]:
        """Return all notes as they are now.

        Raises:
            ConfigError: The file is not one of notes.
        """
        try:
            seen = FileStamp.of(self.path)
        except FileNotFoundError:
            self._seen, self._notes = None, {}
            return self._notes
        if seen != self._seen:
            self._notes = {note.place: note for note in _read(self.path)}
            self._seen = seen
        return self._notes

    def save(self, row: Row, labels: Sequence[str], comment: str) -> None:
        """Keep what is said of an episode instead of what was said before; nothing at all takes the note away.

        Args:
            row: The episode.
            labels: In any order; blanks at their ends and repetitions are dropped.
            comment: What else is to be said.

        Raises:
            ConfigError: The file holds something else, which is left as it is.
            OSError: It cannot be written.
        """
        cleaned = list(dict.fromkeys(" ".join(label.split())[:_LABEL] for label in labels if label.strip()))[:_LABELS]
        note = Note(*place_of(row), tuple(cleaned), comment.strip().replace("\r\n", "\n")[:LONGEST], _about(row))
        with _alone(self.path.parent):
            notes = dict(self.read())
            notes.pop(note.place, None)
            if note.labels or note.comment:
                notes[note.place] = note
            write_whole(self.path, as_json(list(notes.values())))


def apply(notes: Notes, episodes: Episodes) -> list[tuple[Row, Note]]:
    """Tell the table which episodes have which labels; returns the notes with their episodes."""
    found = []
    for note in notes.read().values():
        row = episodes.find(note.phase, note.step, note.group_id, note.episode)
        if row is not None and note.is_about(row):
            found.append((row, note))
    episodes.label([(row, label) for row, note in found for label in (*note.labels, "")])
    return found


def place_of(row: Row) -> Place:
    """Return by what a run knows an episode."""
    return row.phase, row.step, row.group_id, row.episode


def as_json(notes: Sequence[Note]) -> str:
    """Return notes as the text of a file."""
    found = {"format": _FORMAT, "notes": [asdict(note) for note in notes]}
    return json.dumps(found, ensure_ascii=False, indent=1) + "\n"


def _about(row: Row) -> dict[str, Any]:
    return {"tag": row.tag, "seed": row.seed, "status": row.status, "turns": row.turns, "tokens": row.tokens,
            "score": row.score}  # fmt: skip


def _read(path: Path) -> Iterator[Note]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != _FORMAT:
            raise ValueError(f"its format is {found['format']!r}, and this version of roll reads {_FORMAT}")
        for each in found["notes"]:
            yield Note(**{**each, "labels": tuple(each["labels"])})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        fix = "mend it or move it away; it has not been changed."
        raise ConfigError([Problem("notes", f"{path} holds no notes that can be read: {error}", fix)]) from error


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other programs, and other threads of this one, from changing the notes meanwhile."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
