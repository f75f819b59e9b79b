"""Rejection sampling: episodes of a finished run as demonstrations, each token exactly as it was sampled."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from roll.config.errors import ConfigError, Problem
from roll.data.rows import TOKENS
from roll.data.supervised_rows import MASKS
from roll.trajectories.model import Trajectory
from roll.trajectories.samples import is_trainable, samples_from
from roll.trajectories.store import Phase
from roll.viewer.episodes import Episodes, Row
from roll.viewer.run_folder import RunFolder

MESSAGES: Final = "messages"
_TYPES: Final = {
    TOKENS: pa.list_(pa.int32()),
    MASKS[0]: pa.list_(pa.int8()),
    "step": pa.int64(),
    "episode": pa.int64(),
    "score": pa.float64(),
}


@dataclass(frozen=True, slots=True)
class Kept:
    """What of a run became demonstrations.

    Attributes:
        path: The file.
        stored: Episodes of the phase.
        matched: Those that the condition is true of.
        broken: Of those, the ones that cannot be imitated: they broke, or sampled nothing.
        further: Of those that remain, the ones left out since their group had enough.
        episodes: Episodes in the file.
        rows: Its rows: more, where a chat template rewrites what was said before.
        trained_tokens: Sampled tokens in it; ``None`` where it holds messages only.
    """

    path: Path
    stored: int
    matched: int
    broken: int
    further: int
    episodes: int
    rows: int
    trained_tokens: int | None

    def lines(self) -> Iterator[str]:
        """Yield the counts, for people."""
        yield f"{self.matched:,} of {self.stored:,} episodes match."
        if self.broken:
            yield f"{self.broken:,} of them broke or sampled nothing, and are left out."
        if self.further:
            yield f"{self.further:,} more are left out: their groups had better ones."
        content = "messages only" if self.trained_tokens is None else f"{self.trained_tokens:,} sampled tokens"
        yield f"{self.path}: {self.episodes:,} episodes in {self.rows:,} rows, {content}."


def write_demonstrations(run: Path, where: str, path: Path, *, phase: Phase = "train", best: int | None = None) -> Kept:
    """Write the episodes of a run that a condition is true of as data for supervised fine-tuning.

    A row has ``messages``, with ``train: true`` on the responses, and the same as tokens: ``input_ids`` and
    ``assistant_masks``, 1 on sampled tokens. Where an episode was sampled by a server that has no tokens, all rows have
    messages only.

    Args:
        run: Its folder, or a file of its trajectories.
        where: SQL condition on :data:`roll.viewer.episodes.COLUMNS`.
        path: The file to write, ``.parquet`` or ``.jsonl``; whole or not at all.
        phase: ``train`` or ``val``.
        best: Episodes of a group at most, those with the highest scores.

    Raises:
        ConfigError: There is no such run, the condition cannot be understood, nothing matches it, or the suffix is
            neither.
    """
    write = _writer(path)
    with closing(Episodes(RunFolder.find(run))) as episodes:
        episodes.refresh()
        _require_readable(episodes)
        stored = episodes.query("select count(*) from episodes where phase = ?", [phase])[0][0]
        matching = [row for row in episodes.matching(where) if row.phase == phase]
        sound = [row for row in matching if not row.broken and row.turns]
        chosen = sound if best is None else _best(sound, best)
        if not chosen:
            raise ConfigError([_nothing(episodes, where, phase, len(matching))])
        pairs = [pair for pair in episodes.read_all(chosen) if is_trainable(pair[1])]
    has_tokens = all(turn.completion_ids for _, trajectory in pairs for turn in trajectory.turns)
    make = _token_rows if has_tokens else _message_rows
    rows = [made for row, trajectory in pairs for made in make(row, trajectory)]
    write(path, rows)
    return Kept(
        path=path,
        stored=stored,
        matched=len(matching),
        broken=len(matching) - len(sound),
        further=len(sound) - len(chosen),
        episodes=len(pairs),
        rows=len(rows),
        trained_tokens=sum(sum(row[MASKS[0]]) for row in rows) if has_tokens else None,
    )


def _best(rows: list[Row], most: int) -> list[Row]:
    """Return the rows whose scores are among the ``most`` highest of their group; the first where they are equal."""
    by_group: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        by_group.setdefault((row.step, row.group_id), []).append(row)
    kept = set()
    for members in by_group.values():
        members.sort(key=lambda row: (row.score is None, -(row.score or 0.0), row.episode))
        kept |= {row.id for row in members[:most]}
    return [row for row in rows if row.id in kept]


def _token_rows(row: Row, trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    for sample in samples_from(trajectory):
        messages = _messages(trajectory, sample.first_turn, sample.last_turn)
        yield {MESSAGES: messages, TOKENS: sample.token_ids, MASKS[0]: sample.response_mask, **_origin(row)}


def _message_rows(row: Row, trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    begins = [number for number, turn in enumerate(trajectory.turns) if turn.begins_anew or not number]
    for first, end in pairwise([*begins, len(trajectory.turns)]):
        yield {MESSAGES: _messages(trajectory, first, end - 1), **_origin(row)}


def _messages(trajectory: Trajectory, first: int, last: int) -> list[dict[str, Any]]:
    """Return the conversation up to the response of turn ``last``; what was said before turn ``first`` is not imitated.

    The turns go on from one another: none but the first may begin anew.
    """
    said: list[dict[str, Any]] = list(replace(trajectory, turns=trajectory.turns[: last + 1]).conversation)
    for message in said:
        if message["role"] == "assistant":
            message["train"] = False
    place = len(said) - 1
    for turn in reversed(trajectory.turns[first : last + 1]):
        said[place]["train"] = True
        place -= 1 + (len(turn.messages) or 1)  # its response, and what it was told
    return said


def _origin(row: Row) -> dict[str, Any]:
    """Return which episode a row was, which no run reads."""
    return {"step": row.step, "tag": row.tag, "group_id": row.group_id, "episode": row.episode, "score": row.score}


def _require_readable(episodes: Episodes) -> None:
    if episodes.unreadable:
        path, why = next(iter(episodes.unreadable.items()))
        fix = "move the file away, or name the files one by one."
        raise ConfigError([Problem("RUN", f"the episodes in {path} cannot be read: {why}.", fix)])


def _nothing(episodes: Episodes, where: str, phase: str, matching: int) -> Problem:
    """Say why a file would be empty."""
    if matching:
        return Problem("--where", f"all {matching} episodes of it broke or sampled nothing.", "choose others.", where)
    phases = dict(episodes.query("select phase, count(*) from episodes group by all"))
    if phase not in phases:
        there = ", ".join(f"{number} of --phase {name}" for name, number in phases.items()) or "none at all"
        fix = "name another phase, or a run whose trajectory_dump_steps is not 0."
        return Problem("--phase", f"the run stored no {phase} episodes, but {there}.", fix, phase)
    low, high = episodes.query("select min(score), max(score) from episodes where phase = ?", [phase])[0]
    fix = f"ask for less; scores of its {phases[phase]} {phase} episodes are from {low} to {high}."
    return Problem("--where", "no episode is like that.", fix, where)


def _writer(path: Path) -> Callable[[Path, list[dict[str, Any]]], None]:
    """Return what writes rows to a file of such a name."""
    found = {".parquet": _write_parquet, ".jsonl": _write_lines}.get(path.suffix)
    if found is None:
        raise ConfigError(
            [Problem("--out", f"{path.name} says no format.", "end it in .parquet or .jsonl.", str(path))]
        )

    def write(path: Path, rows: list[dict[str, Any]]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            found(temporary, rows)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    return write


def _write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    columns = {name: pa.array([row[name] for row in rows], _TYPES.get(name)) for name in rows[0]}
    pq.write_table(pa.table(columns), path, compression="zstd")


def _write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
