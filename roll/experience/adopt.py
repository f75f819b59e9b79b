"""What a finished run left, in a store, without a copy of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from roll.experience.entries import Entry, Scores, Segment
from roll.experience.errors import SegmentError, StoreError
from roll.experience.folder import FolderStore
from roll.experience.segments import digest_of
from roll.trajectories.model import Status
from roll.trajectories.store import open_trajectories, read_origin, trajectory_path

_VERSION: Final = ("turns", "policy_version", "oldest")


def adopt_run(store: FolderStore, run_folder: str | Path, name: str | None = None) -> int:
    """Make the training groups that a run stored available in a store; their files stay where they are.

    The index refers to the files by their absolute paths, so they must stay there as they are. Members come as they
    were stored, those that broke included. A group's id, and that of its members, is ``<name>/<id in the run>``, as all
    runs use the same ids. Where a run goes on, adopt it again: files that are in the store already are left alone.

    What the files do not say cannot be known. ``baseline`` is ``None``: the greedy member of ``remax`` was not stored.
    ``domain`` is empty: only the ``tag`` of a prompt was, and which domain a tag belongs to is in the configuration of
    the run. Both are to be filled in after a lease, where they are needed. Groups that the run sampled and did not
    train on, or did not store (``trajectory_dump_steps``), are not there.

    The policy version of a group is the oldest of the turns of its sound members; where it has none, the version that
    its step began with. It counts the steps of that run.

    Args:
        store: Where to.
        run_folder: The ``output_dir`` of the run.
        name: What it is called in the store; the name of its folder if ``None``.

    Returns:
        How many groups were new.

    Raises:
        FileNotFoundError: It stored no training trajectories.
        SegmentError: A file was adopted before, with other content.
        StoreError: The store has groups of another run of this name.
        ValueError: A file is not of a version that this code knows.
    """
    folder = Path(run_folder).absolute()
    name = folder.name if name is None else name
    paths = sorted(trajectory_path(folder, 0, "train").parent.glob("step=*.parquet"))
    if not paths:
        raise FileNotFoundError(
            f"{folder} has no trajectories/step=*.parquet: the run stored none. "
            "Name the output_dir of a run whose trajectory_dump_steps is not 0."
        )
    found = [file for path in paths if (file := _file(store, path, f"{name}/"))]
    _require_new(store, [each.group_id for _, entries in found for each in entries], name)
    return sum(store.add(entries, segment) for segment, entries in found if entries)


def _file(store: FolderStore, path: Path, prefix: str) -> tuple[Segment, list[Entry]] | None:
    """Return a file and its groups; ``None`` if the store has it already."""
    digest, known = digest_of(path), store.digest(str(path))
    if known not in (None, digest):
        raise SegmentError(path, "has other content than when it was adopted")
    return None if known else (Segment(str(path), digest, prefix), list(_entries(path, prefix)))


def _require_new(store: FolderStore, group_ids: list[str], name: str) -> None:
    clashes = len(group_ids) - len(store.missing(group_ids))
    if clashes:
        raise StoreError(
            f"{clashes} of {len(group_ids)} groups of the run {name!r} have the id of another group in {store.path} or "
            "in the run. Adopt a run of the same name as another one under a name of its own."
        )


def _entries(path: Path, prefix: str) -> Iterator[Entry]:
    step = read_origin(path).step
    row = 0
    for group_id, members in itertools.groupby(_rows(path), key=lambda each: each["group_id"]):
        rows = list(members)
        version = min((oldest for each in rows for oldest in _versions(each)), default=step - 1)
        scores = Scores.of([_result(each) for each in rows if not Status(each["status"]).is_error])
        yield Entry(f"{prefix}{group_id}", rows[0]["tag"], "", None, version, row, len(rows), scores)
        row += len(rows)


def _rows(path: Path) -> list[dict[str, Any]]:
    with open_trajectories(path) as file:
        leaves = [file.schema.column(number).path for number in range(len(file.schema))]
        (oldest,) = (leaf for leaf in leaves if tuple(leaf.split("."))[:1] + tuple(leaf.split("."))[-2:] == _VERSION)
        columns = ["group_id", "tag", "status", "score", "success", oldest]
        rows: list[dict[str, Any]] = file.read(columns=columns).to_pylist()
    return rows


def _result(row: Mapping[str, Any]) -> tuple[float, bool]:
    """Return score and success of a member."""
    return row["score"] or 0.0, row["success"]


def _versions(row: Mapping[str, Any]) -> list[int]:
    if Status(row["status"]).is_error:
        return []
    return [turn["policy_version"]["oldest"] for turn in row["turns"]]
