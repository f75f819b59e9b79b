"""What an earlier run left in the folders of a new one is moved aside; what nobody wrote for a run stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roll.config import AgenticConfig, RunConfig
from roll.pipelines.run.checkpoint import list_checkpoints, new_checkpoint
from roll.pipelines.run.folders import EVALUATION, NOTES, TRAJECTORIES, make_room
from roll.pipelines.run.record import CONFIG, RECORD


def config_in(folder: Path, **keys: Any) -> RunConfig:
    return AgenticConfig(output_dir=folder, **keys)


def checkpoint(root: Path, step: int) -> Path:
    with new_checkpoint(root, step, {"step": step}, keep=0) as folder:
        (folder / "weights").write_text(str(step))
    return next(path for number, path in list_checkpoints(root) if number == step)


def leave(config: RunConfig, steps: tuple[int, ...] = (1,)) -> None:
    """Write what a run of these steps leaves, and a file that is none of its business."""
    for folder in (config.logs_path, config.render_path, config.output_dir / TRAJECTORIES):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "old").write_text("old")
    for name in (EVALUATION, CONFIG, RECORD, NOTES):
        (config.output_dir / name).write_text("old")
    for step in steps:
        checkpoint(config.checkpoint_path, step)
    (config.output_dir / "notes.txt").write_text("mine")


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_nothing_is_moved_where_nothing_was(tmp_path: Path) -> None:
    config = config_in(tmp_path / "out")
    assert make_room(config, None) is None and not (tmp_path / "out.1").exists()
    config.logs_path.mkdir(parents=True)
    assert make_room(config, None) is None, "an empty folder holds no run"


def test_an_earlier_run_is_moved_whole_and_other_files_stay(tmp_path: Path) -> None:
    config = config_in(tmp_path / "out")
    leave(config)
    before = files(config.output_dir)
    assert make_room(config, None) == tmp_path / "out.1"
    assert files(config.output_dir) == {"notes.txt"}
    assert files(tmp_path / "out.1") == before - {"notes.txt"}, "at the same places"


def test_every_earlier_run_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    config = config_in(tmp_path / "out")
    for number in (1, 2, 3):
        leave(config, (number,))
        assert make_room(config, None) == tmp_path / f"out.{number}"
    for number in (1, 2, 3):
        moved = config_in(tmp_path / f"out.{number}")
        assert [step for step, _ in list_checkpoints(moved.checkpoint_path)] == [number]


@pytest.mark.parametrize(("begun_from", "stays"), [(3, [1, 2, 3]), (2, [1, 2]), (1, [1])])
def test_a_run_that_goes_on_moves_only_newer_checkpoints(tmp_path: Path, begun_from: int, stays: list[int]) -> None:
    config = config_in(tmp_path / "out")
    leave(config, (1, 2, 3))
    found = dict(list_checkpoints(config.checkpoint_path))
    aside = make_room(config, found[begun_from])
    assert [step for step, _ in sorted(list_checkpoints(config.checkpoint_path))] == stays
    assert (config.logs_path / "old").exists() and (config.output_dir / CONFIG).exists()
    if begun_from == 3:
        assert aside is None
    else:
        assert aside == tmp_path / "out.1"
        moved = sorted(step for step, _ in list_checkpoints(config_in(aside).checkpoint_path))
        assert moved == [step for step in (1, 2, 3) if step not in stays]


def test_a_run_that_begins_from_the_checkpoint_of_another_moves_what_is_in_its_way(tmp_path: Path) -> None:
    config = config_in(tmp_path / "out")
    leave(config)
    elsewhere = checkpoint(tmp_path / "another" / "checkpoints", 7)
    assert make_room(config, elsewhere) == tmp_path / "out.1"
    assert elsewhere.exists() and not list_checkpoints(config.checkpoint_path)


def test_checkpoints_elsewhere_are_kept_from_being_written_over_and_logs_elsewhere_are_left_alone(
    tmp_path: Path,
) -> None:
    shared = tmp_path / "shared"
    config = config_in(tmp_path / "out", logging_dir=shared, checkpoint_config={"output_dir": tmp_path / "kept"})
    leave(config, (1, 2))
    assert make_room(config, None) == tmp_path / "kept.1"
    assert not list_checkpoints(config.checkpoint_path)
    assert sorted(step for step, _ in list_checkpoints(tmp_path / "kept.1")) == [1, 2]
    assert files(shared) == {"old"}, "other runs may log there"
    assert (tmp_path / "out.1" / CONFIG).exists()
