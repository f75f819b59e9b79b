"""Checkpoints that are whole or not there: written beside, then renamed into place.

Layout::

    <root>/step=000020/
        state.json         step, seed, format, and whatever else the pipeline must remember
        checksums.xxh128   of every other file
        train_state.pt     weights, optimiser, schedule (written by the train strategy)
        hf/                the policy in Hugging Face format, with its tokenizer
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll.common.disk import sync
from roll.pipelines.run.checksums import CHECKSUMS, damages, visible_damages, write_checksums
from roll.pipelines.run.storage import hidden_refusal, refusal, require_room
from roll.runs.layout import CHECKPOINT_STATE, WEIGHTS, folder_of, is_checkpoint_name, list_checkpoints

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FORMAT = 1
STATE = CHECKPOINT_STATE
CONTENTS = "contents"
"""Key of the state: what of a trainer it has, ``checkpoint_config.contents``."""
_LEFTOVERS = "step=*.partial"


class CheckpointError(RuntimeError):
    """A checkpoint was asked for that is not there, is damaged, or does not belong to this run.

    Attributes:
        fix: What to ask for instead.
    """

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


@dataclass(frozen=True, slots=True)
class Found:
    """A whole checkpoint.

    Attributes:
        path: Its folder.
        notes: What to tell about it: newer ones are damaged, or it cannot be checked. Sentences.
    """

    path: Path
    notes: tuple[str, ...] = ()


@contextmanager
def new_checkpoint(root: Path, step: int, state: Mapping[str, Any], *, keep: int) -> Iterator[Path]:
    """Write the checkpoint of ``step`` atomically and remove the oldest beyond ``keep``.

    A process killed at any moment leaves either the whole checkpoint or only a ``.partial`` folder, which the next
    one removes. So only one run at a time may write to ``root`` (:mod:`roll.runs.lock`)::

        with new_checkpoint(root, 20, state, keep=2) as folder:
            model.save_pretrained(folder)
        # root/step=000020 is there now

    Args:
        root: Folder of all checkpoints.
        step: Completed training steps.
        state: JSON values stored in ``state.json``.
        keep: How many checkpoints stay; 0 keeps all.

    Yields:
        The folder to fill; nothing is kept if filling it fails, and the room that it took is free again.

    Raises:
        StorageError: It does not fit, or the file system refuses it.
    """
    root.mkdir(parents=True, exist_ok=True)
    for leftover in root.glob(_LEFTOVERS):
        shutil.rmtree(leftover)
    if earlier := list_checkpoints(root):
        require_room(root, _bytes_of(earlier[-1][1]))
    final = folder_of(root, step)
    partial = root / f"{final.name}.partial"
    partial.mkdir()
    try:
        yield partial
        content = json.dumps({"format": FORMAT, "step": step, **state}, indent=2, sort_keys=True)
        (partial / STATE).write_text(content, encoding="utf-8")
        write_checksums(partial, STATE)
        for path in (*partial.rglob("*"), partial):
            sync(path)
    except Exception as error:
        said = refusal(error, final, [root]) or hidden_refusal(partial, final)
        _discard(partial)
        if said is not None:
            raise said from error
        raise
    replaced = _set_aside(final) if final.exists() else None
    os.replace(partial, final)
    sync(root)
    if replaced is not None:
        shutil.rmtree(replaced)
    if keep > 0:
        for _, old in list_checkpoints(root)[:-keep]:
            shutil.rmtree(_set_aside(old))


def write_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tokenizer beside the model of a checkpoint, where it has one in Hugging Face format."""
    if (folder / WEIGHTS).is_dir():
        tokenizer.save_pretrained(folder / WEIGHTS)
        # Imported here: everything else does without torch.
        from roll.models.image_processor import copy_image_processor

        copy_image_processor(tokenizer.name_or_path, folder / WEIGHTS)


def find(resume: bool | str, root: Path) -> Found | None:
    """Return the checkpoint to resume from, every file of it checked.

    Args:
        resume: ``False`` for none, ``True`` for the newest whole one under ``root``, or the path of a checkpoint, or
            of a folder of checkpoints, whose newest whole one is taken.
        root: Where this run keeps its checkpoints.

    Raises:
        CheckpointError: A path was named that holds no checkpoint, or a damaged one; or all under ``root`` are damaged.
    """
    if resume is False:
        return None
    if resume is True:
        return _newest_whole(root)
    path = Path(resume).expanduser()
    if (path / STATE).exists() or (is_checkpoint_name(path.name) and path.is_dir()):
        return _named(path)
    found = _newest_whole(path) or _newest_whole(path / "checkpoints")
    if found is None:
        raise CheckpointError(
            f"resume_from_checkpoint={resume!r}: no checkpoint there.",
            f"name a folder step=NNNNNN with a {STATE}, a folder that holds such folders, or use "
            "resume_from_checkpoint=true for the newest of output_dir.",
        )
    return found


def load_state(path: Path) -> dict[str, Any]:
    """Return ``state.json`` of a checkpoint.

    Raises:
        CheckpointError: If it was written in another format.
    """
    state = json.loads((path / STATE).read_text(encoding="utf-8"))
    written = state.get("format") if isinstance(state, dict) else None
    if written != FORMAT:
        raise CheckpointError(
            f"{path} has checkpoint format {written!r}; this version reads {FORMAT}.",
            "load its weights instead: pretrain=<checkpoint>/hf.",
        )
    return dict(state)


def _newest_whole(root: Path) -> Found | None:
    """Return the newest checkpoint under ``root`` that is whole, ``None`` if there is none at all."""
    damaged: list[str] = []
    for _, path in reversed(list_checkpoints(root)):
        found = _inspect(path)
        if isinstance(found, Found):
            notes = [f"{text}. The run goes on from {path.name}, the newest whole checkpoint." for text in damaged[:1]]
            return Found(path, (*(f"{text}." for text in damaged[1:]), *notes, *found.notes))
        damaged.append(found)
    if damaged:
        raise CheckpointError(
            f"{root} has no whole checkpoint: {'; '.join(damaged)}.",
            "restore one from a copy, or start anew with resume_from_checkpoint=false, which moves these aside.",
        )
    return None


def _named(path: Path) -> Found:
    """Return the checkpoint at ``path``, which was asked for and no other."""
    found = _inspect(path)
    if isinstance(found, Found):
        return found
    for _, other in reversed(list_checkpoints(path.parent)):
        if other.resolve() != path.resolve() and isinstance(_inspect(other), Found):
            fix = f"use the newest whole one, resume_from_checkpoint={other}"
            break
    else:
        fix = f"restore it from a copy (there is no other whole one in {path.parent})"
    checked = (path / CHECKSUMS).is_file()
    against = f". Without {path / CHECKSUMS} it is loaded unchecked, if it can be" if checked else ""
    raise CheckpointError(f"{found}.", f"{fix}{against}.")


def _inspect(path: Path) -> Found | str:
    """Return the checkpoint if it is whole, else what is wrong with it."""
    wrong = damages(path, STATE)
    checked = wrong is not None
    if wrong is None:
        wrong = visible_damages(path) if (path / STATE).is_file() else [f"{STATE} is missing"]
    if wrong:
        return f"The checkpoint {path} is damaged: {', '.join(wrong)}"
    unchecked = f"{path} is of a version that wrote no checksums: it is used without a check of its files."
    return Found(path, () if checked else (unchecked,))


def _set_aside(path: Path) -> Path:
    """Rename a checkpoint that is to be removed: killed half-way, a removal must not leave what looks whole."""
    aside = path.with_name(f"{path.name}.old.partial")
    os.replace(path, aside)
    return aside


def _discard(folder: Path) -> None:
    """Remove what could not be written, and free its room at once: the error keeps the writer's files open."""
    for path in folder.rglob("*"):
        if path.is_file():
            with suppress(OSError):
                os.truncate(path, 0)
    shutil.rmtree(folder, ignore_errors=True)


def _bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
