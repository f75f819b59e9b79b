from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roll.pipelines.run import checkpoint
from roll.pipelines.run.checkpoint import CheckpointError, find, list_checkpoints, load_state, new_checkpoint


def save(root: Path, step: int, state: dict[str, Any], write: Callable[[Path], object], *, keep: int) -> Path:
    with new_checkpoint(root, step, state, keep=keep) as folder:
        write(folder)
    return checkpoint.folder_of(root, step)


def found(resume: bool | str, root: Path) -> Path:
    """The checkpoint that is taken, where there is nothing to tell about it."""
    checkpoint = find(resume, root)
    assert checkpoint is not None and checkpoint.notes == ()
    return checkpoint.path


class Killed(BaseException):
    """Stands for a signal: nothing may catch it."""


def writer(text: str = "weights") -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        (directory / "hf").mkdir()
        (directory / "hf" / "model").write_text(text)

    return write


def steps(root: Path) -> list[int]:
    return [step for step, _ in list_checkpoints(root)]


def test_a_checkpoint_holds_what_was_written_and_the_state(tmp_path: Path) -> None:
    path = save(tmp_path / "run", 7, {"seed": 3, "kl": None}, writer(), keep=0)
    assert path == tmp_path / "run" / "step=000007"
    assert (path / "hf" / "model").read_text() == "weights"
    assert load_state(path) == {"format": checkpoint.FORMAT, "step": 7, "seed": 3, "kl": None}
    assert [each.name for each in (tmp_path / "run").iterdir()] == ["step=000007"]
    assert [each.name for each in sorted(path.iterdir())] == ["checksums.xxh128", "hf", "state.json"]


@pytest.mark.parametrize("point", ["write", "state", "sync", "rename"])
def test_a_crash_leaves_only_a_partial_folder_which_the_next_save_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    save(tmp_path, 1, {}, writer("first"), keep=0)

    def die(*_: object) -> None:
        raise Killed

    def write(directory: Path) -> None:
        writer()(directory)
        if point == "write":
            die()

    with monkeypatch.context() as patch:
        if point == "state":
            patch.setattr(checkpoint.json, "dumps", lambda *a, **k: die())
        elif point == "sync":
            patch.setattr(checkpoint.os, "fsync", die)
        elif point == "rename":
            patch.setattr(checkpoint.os, "replace", die)
        with pytest.raises(Killed):
            save(tmp_path, 2, {}, write, keep=0)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["step=000001", "step=000002.partial"]
    assert steps(tmp_path) == [1]
    assert found(True, tmp_path) == tmp_path / "step=000001"
    save(tmp_path, 3, {}, writer(), keep=0)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["step=000001", "step=000003"]


def test_every_file_reaches_the_disk_before_the_checkpoint_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    real_replace, real_sync = os.replace, checkpoint.sync
    monkeypatch.setattr(checkpoint, "sync", lambda path: (events.append(path.name), real_sync(path)))
    monkeypatch.setattr(checkpoint.os, "replace", lambda a, b: (events.append("rename"), real_replace(a, b)))
    save(tmp_path / "root", 1, {}, writer(), keep=0)
    before = events[: events.index("rename")]
    assert {"model", "state.json", "hf", "step=000001.partial"} <= set(before)
    assert events[events.index("rename") + 1 :] == ["root"]


def test_the_newest_checkpoints_stay(tmp_path: Path) -> None:
    for step in (5, 10, 15, 1_000_000):
        save(tmp_path, step, {}, writer(), keep=2)
    assert steps(tmp_path) == [15, 1_000_000]
    assert len(list(tmp_path.iterdir())) == 2
    for step in (1_000_001, 1_000_002):
        save(tmp_path, step, {}, writer(), keep=0)
    assert steps(tmp_path) == [15, 1_000_000, 1_000_001, 1_000_002]


def test_a_removal_that_is_killed_does_not_leave_what_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, {}, writer(), keep=1)

    def half_remove(path: Path) -> None:
        shutil.rmtree(path / "hf")
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(checkpoint, "shutil", type("shutil", (), {"rmtree": staticmethod(half_remove)}))
        save(tmp_path, 2, {}, writer(), keep=1)
    assert steps(tmp_path) == [2]
    save(tmp_path, 3, {}, writer(), keep=1)
    assert [each.name for each in tmp_path.iterdir()] == ["step=000003"]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 4, {"n": 1}, writer("old"), keep=2)
    path = save(tmp_path, 4, {"n": 2}, writer("new"), keep=2)
    assert (path / "hf" / "model").read_text() == "new" and load_state(path)["n"] == 2
    assert [each.name for each in tmp_path.iterdir()] == ["step=000004"]


def test_true_finds_the_newest_and_nothing_where_there_is_none(tmp_path: Path) -> None:
    assert find(True, tmp_path / "absent") is None
    for step in (9, 10):
        save(tmp_path, step, {}, writer(), keep=0)
    (tmp_path / "step=abc").mkdir()
    (tmp_path / "step=000011").write_text("no folder")
    assert found(True, tmp_path) == tmp_path / "step=000010"
    assert find(False, tmp_path) is None


def test_a_path_may_name_a_checkpoint_a_folder_of_them_or_a_run(tmp_path: Path) -> None:
    root = tmp_path / "run" / "checkpoints"
    first = save(root, 1, {}, writer(), keep=0)
    second = save(root, 2, {}, writer(), keep=0)
    elsewhere = tmp_path / "elsewhere"
    assert found(str(first), elsewhere) == first
    assert found(str(root), elsewhere) == second
    assert found(str(tmp_path / "run"), elsewhere) == second


def test_a_path_without_a_checkpoint_is_an_error_that_says_what_to_name(tmp_path: Path) -> None:
    (tmp_path / "step=000001.partial").mkdir()
    with pytest.raises(CheckpointError, match=r"no checkpoint there\.") as error:
        find(str(tmp_path), tmp_path)
    assert "name a folder step=NNNNNN" in error.value.fix and "=true for the newest" in error.value.fix


def test_another_format_is_an_error_that_says_how_to_use_the_weights(tmp_path: Path) -> None:
    path = save(tmp_path, 1, {}, writer(), keep=0)
    (path / "state.json").write_text(json.dumps({"format": 99, "step": 1}))
    with pytest.raises(CheckpointError, match=r"format 99; this version reads 1") as error:
        load_state(path)
    assert "pretrain=<checkpoint>/hf" in error.value.fix
    (path / "state.json").write_text("[1]")
    with pytest.raises(CheckpointError, match=r"format None"):
        load_state(path)
