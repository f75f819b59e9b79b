"""From labels to a data set for preference training: of two episodes from one start, the better and the worse."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from roll.trajectories.model import Trajectory
from roll.trajectories.pairs import CHOSEN, REJECTED, pair_row
from roll.viewer.episodes import Episodes, Row
from roll.viewer.notes import Note, Notes, apply, as_json
from roll.viewer.rendering import write_whole


def preference_pairs(noted: Sequence[tuple[Row, Note]], episodes: Episodes) -> Iterator[dict[str, Any]]:
    """Yield a row per pair of a chosen and a rejected episode that were asked the same.

    Labels say which they are. The same is: the same tag, first observation and first messages, in whatever step or
    evaluation. Rows are those of :func:`roll.trajectories.pairs.pair_row`, and name the episodes.

    Args:
        noted: Episodes with what was said of them.
        episodes: The table.
    """
    asked: dict[str, dict[str, list[tuple[Row, Trajectory]]]] = {}
    for row, note in noted:
        sides = {CHOSEN, REJECTED} & set(note.labels)
        if len(sides) != 1:
            continue
        trajectory, _ = episodes.read(row)
        if trajectory.turns:
            same = json.dumps([trajectory.tag, trajectory.initial_hash, trajectory.messages])
            asked.setdefault(same, {}).setdefault(sides.pop(), []).append((row, trajectory))
    for found in asked.values():
        for better in found.get(CHOSEN, []):
            for worse in found.get(REJECTED, []):
                pair = pair_row(better[1], worse[1])
                if pair is not None:
                    yield pair | {"chosen_episode": _name(better[0]), "rejected_episode": _name(worse[0])}


def write_notes(episodes: Episodes, path: Path, *, pairs: bool) -> int:
    """Write the notes on episodes that are still stored, or the pairs they make, as a file, whole or not at all.

    Args:
        episodes: The table.
        path: The file; one that exists is replaced.
        pairs: Whether pairs are written (JSON lines), else notes (JSON).

    Returns:
        How many.

    Raises:
        ConfigError: The notes of the run cannot be read.
    """
    noted = apply(Notes(episodes.run.notes_file), episodes)
    if not pairs:
        write_whole(path, as_json([note for _, note in noted]))
        return len(noted)
    rows = list(preference_pairs(noted, episodes))
    write_whole(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return len(rows)


def _name(row: Row) -> str:
    return f"{row.phase}/{row.step}/{row.group_id}/{row.episode}"
