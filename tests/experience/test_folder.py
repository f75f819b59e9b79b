"""A store in a folder: what is on the disk, what a kill leaves there, and what is said of damage."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from experience_support import make_group

from roll.experience.errors import SegmentError, StoreError
from roll.experience.folder import FolderStore
from roll.experience.index import Index
from roll.experience.segments import digest_of
from roll.trajectories.model import Trajectory
from roll.trajectories.store import read_origin, read_trajectories, write_trajectories


class KilledError(BaseException):
    """The process ends here."""


def segments(path: Path) -> list[Path]:
    return sorted((path / "segments").glob("*.parquet"))


def filled(path: Path, number: int = 4) -> FolderStore:
    store = FolderStore(path)
    for first in range(0, number, 2):
        store.append([make_group(first), make_group(first + 1)], 7)
    return store


def test_a_segment_is_a_plain_file_of_trajectories(tmp_path: Path) -> None:
    filled(tmp_path, 2).close()
    (segment,) = segments(tmp_path)
    assert read_trajectories(segment) == make_group(0).trajectories + make_group(1).trajectories
    assert read_origin(segment).step == 7
    assert sorted(each.name for each in (tmp_path / "segments").iterdir()) == [segment.name], "no lock is left"


def test_only_the_segments_of_a_lease_are_read(tmp_path: Path) -> None:
    store = filled(tmp_path)
    Path(segments(tmp_path)[1]).unlink()
    lease = store.lease(2, 1)
    assert lease is not None and list(lease.groups) == [make_group(0), make_group(1)]


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "another"])
def test_a_damaged_segment_is_named_and_the_step_keeps_its_groups(tmp_path: Path, damage: str) -> None:
    filled(tmp_path / "store").close()
    segment = segments(tmp_path / "store")[0]
    whole = segment.read_bytes()
    flipped = bytes([*whole[:100], whole[100] ^ 1, *whole[101:]])
    other = segments(tmp_path / "store")[1].read_bytes()
    if damage == "missing":
        segment.unlink()
    else:
        segment.write_bytes({"cut": whole[:-20], "flipped": flipped, "another": other}[damage])
    store = FolderStore(tmp_path / "store")
    with pytest.raises(SegmentError, match="missing" if damage == "missing" else "damaged or was replaced") as raised:
        store.lease(2, 1)
    assert raised.value.path == segment and str(segment) in str(raised.value) and "Put back" in str(raised.value)
    segment.write_bytes(whole)
    lease = store.lease(2, 1)
    assert lease is not None and list(lease.groups) == [make_group(0), make_group(1)]


def test_a_number_that_does_not_fit_keeps_no_group_of_the_call(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    wrong = make_group(1)
    wrong.trajectories = [Trajectory("a", wrong.group_id, 0, seed=-1)]
    with pytest.raises(ValueError, match="unsigned 64-bit"):
        store.append([make_group(0), wrong], 0)
    assert store.counts().groups == 0 and not segments(tmp_path)
    assert store.append([make_group(0)], 0) == 1


def end(store: FolderStore) -> None:
    """Let go of the lock of a writer, as the kernel does where its process ends."""
    assert store._writer is not None
    os.close(store._writer._lock)


@pytest.mark.parametrize("moment", ["before the segment", "within the segment", "before the index", "after the index"])
def test_an_append_that_is_killed_keeps_all_or_nothing_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    killed, groups = FolderStore(tmp_path), [make_group(number) for number in range(3)]
    killed.append([make_group(9)], 0)
    real = Index.add

    def add_and_die(self: Index, *arguments: object) -> None:
        if moment == "after the index":
            real(self, *arguments)  # type: ignore[arg-type]
        raise KilledError

    def write_and_die(path: Path, *_: object, **__: object) -> None:
        if moment == "within the segment":
            path.with_name(f".{path.name}.1.tmp").write_bytes(b"PAR1 half")
        raise KilledError

    with monkeypatch.context() as patch:
        if moment.endswith("index"):
            patch.setattr(Index, "add", add_and_die)
        else:
            patch.setattr("roll.experience.segments.write_trajectories", write_and_die)
        with pytest.raises(KilledError):
            killed.append(groups, 0)
    end(killed)
    store = FolderStore(tmp_path)
    assert store.append(groups, 1) == (0 if moment == "after the index" else 3)
    assert store.append([make_group(5)], 1) == 1
    lease = store.lease(5, 1)
    assert lease is not None and list(lease.groups) == [make_group(9), *groups, make_group(5)]
    store.close()
    names = [each.name for each in (tmp_path / "segments").iterdir()]
    assert len(names) == 3 and all(name.endswith(".parquet") for name in names)


def test_a_segment_that_is_just_being_written_is_not_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, real = FolderStore(tmp_path), Index.add

    def add_late(self: Index, *arguments: object) -> object:
        monkeypatch.setattr(Index, "add", real)
        other = FolderStore(tmp_path)
        assert other.append([make_group(5)], 0) == 1
        other.close()
        return real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Index, "add", add_late)
    assert slow.append([make_group(0)], 0) == 1
    lease = slow.lease(2, 1)
    assert lease is not None and list(lease.groups) == [make_group(5), make_group(0)]


def test_of_two_that_append_the_same_at_once_one_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, real = FolderStore(tmp_path), Index.add

    def add_late(self: Index, *arguments: object) -> object:
        monkeypatch.setattr(Index, "add", real)
        assert FolderStore(tmp_path).append([make_group(0, 1), make_group(1, 1)], 0) == 2
        return real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Index, "add", add_late)
    assert slow.append([make_group(0), make_group(1), make_group(2)], 0) == 1
    lease = slow.lease(3, 1)
    assert lease is not None and list(lease.groups) == [make_group(0, 1), make_group(1, 1), make_group(2)]


def test_files_of_groups_that_were_forgotten_are_swept_away(tmp_path: Path) -> None:
    store = filled(tmp_path, 6)
    assert store.lease(4, 1)
    store.keep_first(3)
    assert store.counts().available == 3
    store.append([make_group(9)], 8)
    store.close()
    assert len(segments(tmp_path)) == 3, "the segment of two groups, that of one, and the new one"
    lease = FolderStore(tmp_path).lease(4, 1)
    assert lease is not None and list(lease.groups) == [make_group(0), make_group(1), make_group(2), make_group(9)]


def test_other_files_beside_segments_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "segments").mkdir()
    (tmp_path / "segments" / "notes.txt").write_text("mine")
    filled(tmp_path).close()
    FolderStore(tmp_path).append([make_group(8)], 0)
    assert (tmp_path / "segments" / "notes.txt").read_text() == "mine"


def test_another_version_of_the_index_is_refused(tmp_path: Path) -> None:
    filled(tmp_path).close()
    database = sqlite3.connect(tmp_path / "index.sqlite")
    database.execute("pragma user_version = 99")
    database.close()
    with pytest.raises(StoreError, match=r"index\.sqlite has version 99.*reads version 3.*empty store"):
        FolderStore(tmp_path)


def test_an_index_of_the_version_before_gets_what_it_lacks(tmp_path: Path) -> None:
    filled(tmp_path).close()
    database = sqlite3.connect(tmp_path / "index.sqlite")
    database.executescript("drop table reviews; pragma user_version = 2")
    database.close()
    store = FolderStore(tmp_path)
    assert store.counts().available == store.counts().groups > 0 and store.waiting() == []
    store.close()


def test_what_is_no_index_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    index = tmp_path / "index.sqlite"
    index.write_text("no database at all, and longer than the header of one, which is a hundred bytes" * 3)
    before = digest_of(index)
    with pytest.raises(StoreError, match="is no index"):
        FolderStore(tmp_path)
    assert digest_of(index) == before
    index.unlink()
    foreign = sqlite3.connect(index)
    foreign.execute("create table mine (a)")
    foreign.commit()
    foreign.close()
    before = digest_of(index)
    with pytest.raises(StoreError, match="database of something else"):
        FolderStore(tmp_path)
    assert digest_of(index) == before


def test_segments_without_their_index_are_not_taken_for_rubbish(tmp_path: Path) -> None:
    filled(tmp_path).close()
    (tmp_path / "index.sqlite").unlink()
    with pytest.raises(StoreError, match="only the index knows"):
        FolderStore(tmp_path).append([make_group(9)], 0)
    assert len(segments(tmp_path)) == 2


def test_a_store_may_be_moved(tmp_path: Path) -> None:
    filled(tmp_path / "here").close()
    shutil.move(tmp_path / "here", tmp_path / "there")
    lease = FolderStore(tmp_path / "there").lease(4, 1)
    assert lease is not None and list(lease.groups) == [make_group(number) for number in range(4)]


def test_groups_that_lie_in_a_file_are_kept_without_writing_them_again(tmp_path: Path) -> None:
    groups = [make_group(number) for number in range(4)]
    file = tmp_path / "file.parquet"
    members = [member for group in groups for member in group.trajectories]
    write_trajectories(file, members, step=3, phase="train", run="explores")
    store = FolderStore(tmp_path / "store")
    kept = {group.group_id for group in groups[:3]}
    assert store.append_file(file, groups, 7, kept) == 3 and store.append_file(file, groups, 7, kept) == 0
    (segment,) = segments(tmp_path / "store")
    assert segment.stat().st_ino == file.stat().st_ino
    write_trajectories(file, members[:1], step=4, phase="train", run="explores")  # the run goes on over its file
    lease = store.lease(3, 1)
    assert lease is not None and list(lease.groups) == groups[:3] and lease.policy_version == (7, 7, 7)
    assert (store.file_of(lease) is None) == bool(groups[3].trajectories), "whether the file has more"
    assert store.append_file(segment, groups, 8, {group.group_id for group in groups}, "other/") == 4
    again = store.lease(4, 2)
    assert again is not None
    assert [group.group_id for group in again.groups] == [f"other/{group.group_id}" for group in groups]
    assert all(member.group_id == group.group_id for group in again.groups for member in group.trajectories)
    store.append([make_group(8), make_group(9)], 9)
    last = store.lease(2, 3)
    assert last is not None and store.file_of(last) not in (None, segment)


def test_a_file_that_cannot_be_linked_leaves_nothing(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    with pytest.raises(OSError):
        store.append_file(tmp_path / "nowhere.parquet", [make_group(0)], 0, {make_group(0).group_id})
    assert not segments(tmp_path / "store") and not store.counts().groups
