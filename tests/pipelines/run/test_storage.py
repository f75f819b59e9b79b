"""What the file system refuses, by real limits: each is told in a sentence, and what was saved before stays."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from roll.config import AgenticConfig, ConfigError, RunError
from roll.pipelines.run.checkpoint import find, list_checkpoints, new_checkpoint
from roll.pipelines.run.folders import folders, own_folders
from roll.pipelines.run.storage import StorageError, refusal, refusals_end_the_run
from roll.tracking.local import JsonlTracker

pytestmark = pytest.mark.processes

WEIGHTS = {"w": torch.zeros(200_000)}


def as_torch(folder: Path) -> None:
    torch.save(WEIGHTS, folder / "train_state.pt")


def as_safetensors(folder: Path) -> None:
    save_file(WEIGHTS, folder / "model.safetensors")


def as_text(folder: Path) -> None:
    (folder / "weights.json").write_text("x" * 800_000)


WRITERS = (as_torch, as_safetensors, as_text)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts file systems of a given size, where this user may."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True).returncode:
            pytest.skip("this user may not mount file systems")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", folder], check=True)


def save(root: Path, step: int, write: Callable[[Path], None]) -> None:
    with new_checkpoint(root, step, {}, keep=0) as folder:
        write(folder)


def save_under_a_limit(root: Path, write: Callable[[Path], None]) -> str:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        save(root, 2, write)
    except StorageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("write", WRITERS)
def test_a_limit_of_file_sizes_is_named(tmp_path: Path, write: Callable[[Path], None]) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as child:
        said = child.submit(save_under_a_limit, tmp_path, write).result()
    assert "larger than 0.1 MB. Raise the limit (`ulimit -f unlimited`)" in said and "step=000002" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("write", WRITERS)
def test_a_full_disk_is_named_and_the_checkpoint_before_stays(
    disk: Callable[..., Path], write: Callable[[Path], None]
) -> None:
    root = disk("size=1500k")
    save(root, 1, lambda folder: (folder / "small").touch())  # type: ignore[func-returns-value]
    (root / "others").write_bytes(bytes(1_000_000))
    with pytest.raises(StorageError, match=r"step=000002.* cannot be written: no space is left there \(0\.. MB free\)"):
        save(root, 2, write)
    assert [step for step, _ in list_checkpoints(root)] == [1]
    # The room is free again: what is left of the run can be written.
    assert not list(root.glob("*.partial")) and os.statvfs(root).f_bavail * 4096 > 300_000


def test_a_checkpoint_that_will_not_fit_is_not_begun(disk: Callable[..., Path]) -> None:
    root = disk("size=1500k")
    save(root, 1, as_torch)
    began: list[Path] = []
    with pytest.raises(StorageError, match=r"needs 0\.8 MB as the last one did, and 0\.. MB are free.*output_dir"):
        save(root, 2, began.append)
    assert began == []
    found = find(True, root)
    assert found is not None and found.path.name == "step=000001"


def test_a_disk_without_room_for_another_file_is_told_from_one_without_space(disk: Callable[..., Path]) -> None:
    root = disk("size=8m,nr_inodes=8")
    with pytest.raises(StorageError, match="no files can be added, though there is room"):
        save(root, 1, lambda folder: [(folder / str(n)).touch() for n in range(9)] and None)


def test_a_read_only_disk_is_refused_before_anything_is_done(disk: Callable[..., Path]) -> None:
    root = disk("size=1m")
    subprocess.run(["mount", "-o", "remount,ro", root], check=True)
    for changes in ({"output_dir": root / "a" / "b"}, {"output_dir": root.parent / "o", "logging_dir": root / "logs"}):
        with pytest.raises(ConfigError, match="_dir = .*\n.*the file system there is read-only"):
            with own_folders(AgenticConfig(**changes)):
                pass
    assert not (root.parent / "o").exists()


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("file", "a file is in its place"),
        ("file/below", "a file is in the place of a folder"),
        ("x" * 300, "file name too long"),
        ("/proc/nowhere", "no such file or directory"),
    ],
)
def test_an_output_folder_that_cannot_be_made_is_a_problem_of_its_key(tmp_path: Path, place: str, message: str) -> None:
    (tmp_path / "file").touch()
    keys = ("output_dir", "logging_dir", "render_save_dir")
    for key in keys:
        config = AgenticConfig(**{"output_dir": tmp_path / "out", key: tmp_path / place})
        with pytest.raises(ConfigError, match=f"(?i){key} = .*\n.*{message}"), own_folders(config):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_logs_that_cannot_be_written_end_the_run_in_a_sentence(disk: Callable[..., Path]) -> None:
    config = AgenticConfig(output_dir=disk("size=64k"))
    with pytest.raises(RunError, match=r"no space is left there .*\nStep 7 is saved\."):
        with refusals_end_the_run(folders(config), lambda: "Step 7 is saved."):
            tracker = JsonlTracker(log_dir=config.logs_path)
            for step in range(100_000):
                tracker.log({"reward": 1.0}, step)


def test_what_has_nothing_to_do_with_storage_is_left_alone(tmp_path: Path) -> None:
    for error in (ConnectionResetError(errno.ECONNRESET, "reset"), FileNotFoundError(errno.ENOENT, "no", "/else")):
        assert refusal(error, tmp_path, [tmp_path]) is None
        with pytest.raises(type(error)), refusals_end_the_run([tmp_path], str):
            raise error
    with pytest.raises(RuntimeError, match="^shapes differ$"):
        with new_checkpoint(tmp_path, 1, {}, keep=0):
            raise RuntimeError("shapes differ")
    gone = FileNotFoundError(errno.ENOENT, "no", str(tmp_path / "logs" / "x"))
    assert "no such file" in str(refusal(gone, tmp_path, [tmp_path]))
