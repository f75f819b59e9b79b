"""What a finished run left is learned from without a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from roll.experience.adopt import adopt_run
from roll.experience.errors import SegmentError, StoreError
from roll.experience.folder import FolderStore
from roll.trajectories.model import Status, Trajectory, Turn
from roll.trajectories.store import trajectory_path, write_trajectories


def member(group: str, episode: int, versions: list[int], status: Status = Status.COMPLETED) -> Trajectory:
    turns = [Turn([1, 2], [3], [-0.5], (version, version + 1)) for version in versions]
    return Trajectory("gsm8k", group, episode, 7, turns=turns, status=status, score=float(episode))


STEPS = {
    1: [member("train-0", 0, [0, 0]), member("train-0", 1, [0]), member("train-1", 0, [0])],
    2: [member("train-2", 0, [1, 0]), member("train-2", 1, [-3], Status.ERROR_ENV),
        member("train-3", 0, [], Status.ABORTED)],
}  # fmt: skip


def write_run(folder: Path, steps: dict[int, list[Trajectory]] = STEPS) -> Path:
    for step, members in steps.items():
        write_trajectories(trajectory_path(folder, step, "train"), members, step=step, phase="train", run="sums")
    write_trajectories(trajectory_path(folder, 2, "val"), [member("val-0", 0, [0])], step=2, phase="val", run="sums")
    return folder


def test_the_training_groups_of_a_run_are_there_with_their_versions_and_no_copy(tmp_path: Path) -> None:
    run, store = write_run(tmp_path / "run"), FolderStore(tmp_path / "store")
    assert adopt_run(store, run) == 4
    lease = store.lease(4, 1)
    assert lease is not None
    assert [group.group_id for group in lease.groups] == [f"run/train-{number}" for number in range(4)]
    assert lease.policy_version == (0, 0, 0, 1), "what broke counts not; where all broke, what the step began with"
    for group in lease.groups:
        assert {each.group_id for each in group.trajectories} == {group.group_id}
        assert (group.tag, group.domain, group.baseline) == ("gsm8k", "", None)
        for each in group.trajectories:
            each.group_id = each.group_id.removeprefix("run/")
    assert [each for group in lease.groups for each in group.trajectories] == STEPS[1] + STEPS[2]
    assert not list((tmp_path / "store" / "segments").iterdir())


def test_a_run_that_went_on_is_adopted_again(tmp_path: Path) -> None:
    run, store = write_run(tmp_path / "run"), FolderStore(tmp_path / "store")
    adopt_run(store, run)
    store.finish()
    assert adopt_run(store, run) == 0 and store.finished
    write_run(run, {3: [member("train-4", 0, [2])]})
    assert adopt_run(store, run) == 1 and not store.finished


def test_two_runs_with_the_same_ids_are_apart(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    adopt_run(store, write_run(tmp_path / "one"))
    assert adopt_run(store, write_run(tmp_path / "two")) == 4
    again = write_run(tmp_path / "elsewhere" / "one")
    with pytest.raises(StoreError, match="4 of 4 groups of the run 'one'.*under a name of its own"):
        adopt_run(store, again)
    assert store.counts().groups == 8
    assert adopt_run(store, again, name="three") == 4


def test_a_file_that_was_written_anew_is_not_taken_for_the_adopted_one(tmp_path: Path) -> None:
    run, store = write_run(tmp_path / "run"), FolderStore(tmp_path / "store")
    adopt_run(store, run)
    write_run(run, {2: [member("train-2", 0, [1], Status.TRUNCATED_TURNS)]})
    with pytest.raises(SegmentError, match=r"step=000002\.parquet.*other content"):
        adopt_run(store, run)
    assert store.lease(2, 1) is not None
    with pytest.raises(SegmentError, match=r"step=000002\.parquet.*replaced"):
        store.lease(2, 2)
    shutil.rmtree(run)
    with pytest.raises(SegmentError, match=r"step=000001\.parquet.*is missing"):
        FolderStore(tmp_path / "store").lease(2, 1)


def test_a_run_that_stored_nothing_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="trajectory_dump_steps"):
        adopt_run(FolderStore(tmp_path / "store"), tmp_path)
