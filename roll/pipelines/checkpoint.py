"""Checkpoints that are whole or not there: written beside, then renamed into place.

Layout::

    <root>/step=000020/
        state.json         step, seed, format, and whatever else the pipeline must remember
        train_state.pt     weights, optimiser, schedule (written by the train strategy)
        hf/                the policy in Hugging Face format, with its tokenizer
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FORMAT = 1
_NAME = re.compile(r"step=(\d+)$")


class CheckpointError(RuntimeError):
    """A checkpoint was asked for that is not there, or does not belong to this run."""


@contextmanager
def new_checkpoint(root: Path, step: int, state: Mapping[str, Any], *, keep: int) -> Iterator[Path]:
    """Write the checkpoint of ``step`` atomically and remove the oldest beyond ``keep``.

    A process killed at any moment leaves either the whole checkpoint or only a ``.partial`` folder, which the next
    one removes::

        with new_checkpoint(root, 20, state, keep=2) as folder:
            model.save_pretrained(folder)
        # root/step=000020 is there now

    Args:
        root: Folder of all checkpoints.
        step: Completed training steps.
        state: JSON values stored in ``state.json``.
        keep: How many checkpoints stay; 0 keeps all.

    Yields:
        The folder to fill; nothing is kept if filling it fails.
    """
    root.mkdir(parents=True, exist_ok=True)
    for leftover in root.glob("*.partial"):
        shutil.rmtree(leftover)
    final = folder_of(root, step)
    partial = root / f"{final.name}.partial"
    partial.mkdir()
    yield partial
    content = json.dumps({"format": FORMAT, "step": step, **state}, indent=2, sort_keys=True)
    (partial / "state.json").write_text(content, encoding="utf-8")
    for path in (*partial.rglob("*"), partial):
        _sync(path)
    replaced = _set_aside(final) if final.exists() else None
    os.replace(partial, final)
    _sync(root)
    if replaced is not None:
        shutil.rmtree(replaced)
    if keep > 0:
        for _, old in list_checkpoints(root)[:-keep]:
            shutil.rmtree(_set_aside(old))


def folder_of(root: Path, step: int) -> Path:
    """Return the folder of the checkpoint of ``step``."""
    return root / f"step={step:06d}"


def list_checkpoints(root: Path) -> list[tuple[int, Path]]:
    """Return (step, folder) of every whole checkpoint under ``root``, oldest first."""
    found = []
    for path in root.glob("step=*"):
        match = _NAME.search(path.name)
        if match and (path / "state.json").is_file():
            found.append((int(match.group(1)), path))
    return sorted(found)


def find(resume: bool | str, root: Path) -> Path | None:
    """Return the checkpoint to resume from.

    Args:
        resume: ``False`` for none, ``True`` for the newest under ``root``, or the path of a checkpoint, or of a folder
            of checkpoints.
        root: Where this run keeps its checkpoints.

    Raises:
        CheckpointError: If a path was named that holds no checkpoint.
    """
    if resume is False:
        return None
    if resume is True:
        newest = list_checkpoints(root)
        return newest[-1][1] if newest else None
    path = Path(resume).expanduser()
    if (path / "state.json").is_file():
        return path
    newest = list_checkpoints(path) or list_checkpoints(path / "checkpoints")
    if newest:
        return newest[-1][1]
    raise CheckpointError(
        f"resume_from_checkpoint={resume!r}: no checkpoint there. Name a folder step=NNNNNN with a state.json, a "
        "folder that holds such folders, or use resume_from_checkpoint=true for the newest of output_dir."
    )


def load_state(path: Path) -> dict[str, Any]:
    """Return ``state.json`` of a checkpoint.

    Raises:
        CheckpointError: If it was written in another format.
    """
    state: dict[str, Any] = json.loads((path / "state.json").read_text(encoding="utf-8"))
    if state.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} has checkpoint format {state.get('format')!r}; this version reads {FORMAT}. "
            "Load its weights instead: pretrain=<checkpoint>/hf."
        )
    return state


def _set_aside(path: Path) -> Path:
    """Rename a checkpoint that is to be removed: killed half-way, a removal must not leave what looks whole."""
    aside = path.with_name(f"{path.name}.old.partial")
    os.replace(path, aside)
    return aside


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
