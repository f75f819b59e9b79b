"""Checkpoints that something happened to: the damage is named, and the newest whole one is taken or offered."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from roll.pipelines.run.checkpoint import STATE, CheckpointError, Found, find, folder_of, load_state, new_checkpoint
from roll.pipelines.run.checksums import CHECKSUMS, damages

FILES = ("train_state.pt", "hf/model.safetensors", "hf/config.json", "ranks/.metadata", STATE)


def fill(folder: Path) -> None:
    """What strategies write: zip archives, safetensors, JSON, and files in folders of their own."""
    weights = {"w": torch.arange(4000.0)}
    (folder / "hf").mkdir()
    (folder / "ranks").mkdir()
    torch.save(weights, folder / "train_state.pt")
    save_file(weights, folder / "hf" / "model.safetensors")
    (folder / "hf" / "config.json").write_text(json.dumps({"model_type": "toy"}))
    (folder / "ranks" / ".metadata").write_bytes(b"\x80\x04" * 50)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for step in (10, 20, 30):
        with new_checkpoint(tmp_path, step, {"seed": 1}, keep=0) as folder:
            fill(folder)
    return tmp_path


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    """Change 4,000 bytes, or one of a small file."""
    content = bytearray(path.read_bytes())
    start = len(content) // 3
    for index in range(start, min(start + 4000, start + len(content) // 2)):
        content[index] ^= 0x40
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


def taken(resume: bool | str, root: Path) -> Found:
    found = find(resume, root)
    assert found is not None
    return found


@pytest.mark.parametrize("damage", [truncate, flip, empty, remove])
@pytest.mark.parametrize("name", [*FILES, CHECKSUMS])
def test_the_newest_whole_checkpoint_is_taken_and_the_damage_is_named(
    root: Path, name: str, damage: Callable[[Path], None]
) -> None:
    damage(folder_of(root, 30) / name)
    found = taken(True, root)
    if (name, damage) == (CHECKSUMS, remove):
        # Like one that was written before there were checksums.
        assert found.path == folder_of(root, 30) and "without a check" in found.notes[0]
        return
    assert found.path == folder_of(root, 20) and load_state(found.path)["step"] == 20
    assert found.notes == (
        f"The checkpoint {folder_of(root, 30)} is damaged: {name} is "
        f"{'missing' if damage is remove else 'not as it was written'}. "
        "The run goes on from step=000020, the newest whole checkpoint.",
    )


def test_a_damaged_checkpoint_that_was_named_is_refused_and_the_newest_whole_one_offered(root: Path) -> None:
    flip(folder_of(root, 20) / "train_state.pt")
    truncate(folder_of(root, 30) / STATE)
    with pytest.raises(CheckpointError, match="000020 is damaged: train_state.pt is not as it was written") as error:
        find(str(folder_of(root, 20)), root)
    assert f"resume_from_checkpoint={folder_of(root, 10)}." in error.value.fix
    # Of a folder of checkpoints the newest whole one is wanted.
    found = taken(str(root), root / "elsewhere")
    assert found.path == folder_of(root, 10) and len(found.notes) == 2
    assert found.notes[0].startswith(f"The checkpoint {folder_of(root, 20)} is damaged")


def test_a_run_does_not_start_anew_where_every_checkpoint_is_damaged(root: Path) -> None:
    for step in (10, 20, 30):
        remove(folder_of(root, step) / STATE)
    with pytest.raises(CheckpointError, match="has no whole checkpoint: .*000030.*000020.*000010") as error:
        find(True, root)
    assert "resume_from_checkpoint=false" in error.value.fix
    with pytest.raises(CheckpointError, match="state.json is missing") as error:
        find(str(folder_of(root, 10)), root)
    assert "there is no other whole one" in error.value.fix


@pytest.mark.parametrize("name", ["train_state.pt", "hf/model.safetensors", "hf/config.json", STATE])
def test_what_has_no_checksums_is_loaded_unless_it_is_visibly_cut_short(root: Path, name: str) -> None:
    for step in (10, 20, 30):
        remove(folder_of(root, step) / CHECKSUMS)
    assert taken(True, root).path == folder_of(root, 30)
    truncate(folder_of(root, 30) / name)
    found = taken(True, root)
    assert found.path == folder_of(root, 20) and f"{name} is" in found.notes[0]


def test_a_line_feed_that_became_a_vertical_tab_is_seen(root: Path) -> None:
    file = folder_of(root, 30) / CHECKSUMS
    file.write_bytes(file.read_bytes().replace(b"\n", b"\v", 1))
    assert damages(folder_of(root, 30), STATE) != []


@pytest.mark.exhaustive
@pytest.mark.long
@given(st.sampled_from([*FILES, CHECKSUMS]), st.randoms(use_true_random=False))
def test_no_change_of_a_single_bit_goes_unseen(
    tmp_path_factory: pytest.TempPathFactory, name: str, draw: random.Random
) -> None:
    folder = tmp_path_factory.getbasetemp() / "bits" / "step=000001"
    if not folder.exists():
        with new_checkpoint(folder.parent, 1, {}, keep=0) as partial:
            fill(partial)
    content = (folder / name).read_bytes()
    changed = bytearray(content)
    changed[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    assert damages(folder, STATE) == []
    try:
        (folder / name).write_bytes(changed)
        assert damages(folder, STATE) != []
    finally:
        (folder / name).write_bytes(content)


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("xxh128sum") is None, reason="the package xxhash of the system is not installed")
def test_the_tool_of_the_system_checks_a_checkpoint_too(root: Path) -> None:
    def verdict() -> int:
        command = ["xxh128sum", "--check", "--strict", "--quiet", CHECKSUMS]
        return subprocess.run(command, cwd=folder_of(root, 30), capture_output=True).returncode

    assert verdict() == 0
    flip(folder_of(root, 30) / "hf" / "model.safetensors")
    assert verdict() == 1
