"""The folders of a run: no other run may write there meanwhile, and what an earlier one left is moved aside."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from roll.config import ConfigError, Problem, RunConfig
from roll.pipelines.run.storage import reason_of
from roll.runs.layout import CHECKPOINTS, CONFIG, EVALUATION, NOTES, RECORD, REPLAY, TRAJECTORIES, list_checkpoints
from roll.runs.lock import FolderInUseError, hold, require_writable
from roll.runs.outcome import OUTCOME


@contextmanager
def own_folders(config: RunConfig) -> Iterator[list[str]]:
    """Keep every other run out of the folders that this one writes to, and make sure that they can be written to.

    Logs and reviews outside of ``output_dir`` may be shared by many runs.

    Yields:
        What a person should know about it, as sentences.

    Raises:
        ConfigError: Another run has one of the folders, or it cannot be made or written to. Nothing was changed.
    """
    notes: list[str] = []
    with ExitStack() as held:
        for key, folder, shared in _written(config):
            try:
                if shared:
                    require_writable(folder)
                elif not held.enter_context(hold(folder)):
                    notes.append(f"The file system of {folder} has no locks: see to it that no other run writes there.")
            except FolderInUseError as error:
                raise ConfigError([Problem(key, str(error), error.fix, str(folder))]) from error
            except OSError as error:
                message = f"the folder cannot be made or written to: {reason_of(error.errno or 0)}."
                fix = f"name a folder that can: {key}=<folder>."
                raise ConfigError([Problem(key, message, fix, str(folder))]) from error
        yield notes


def folders(config: RunConfig) -> list[Path]:
    """Return the folders that a run writes to."""
    return [config.output_dir, *(folder for _, folder, _ in _written(config))]


def _written(config: RunConfig) -> Iterator[tuple[str, Path, bool]]:
    """Yield the folders that are written to: the key that names each, and whether other runs may write there too."""
    yield "output_dir", config.output_dir, False
    root, key = config.checkpoint_path, "checkpoint_config.output_dir"
    if not _is_below(root, config.output_dir) and root.resolve() != config.output_dir.resolve():
        yield key, root, False
        if root.name == CHECKPOINTS and root.parent.resolve() != config.output_dir.resolve():
            # Those of another run, which holds its output_dir.
            yield key, root.parent, False
    for key, folder in (("logging_dir", config.logs_path), ("render_save_dir", config.render_path)):
        if not _is_below(folder, config.output_dir):
            yield key, folder, True


def make_room(config: RunConfig, begun_from: Path | None, also: Sequence[Path] = ()) -> Path | None:
    """Move what an earlier run left to ``output_dir.1`` (``.2``, …), unless this run continues it.

    A run that continues from an older checkpoint than the newest moves only the newer checkpoints aside, so that the
    next resume does not mistake them for its own.

    Args:
        config: Where this run writes. Only what runs write is moved; other files in ``output_dir`` stay.
        begun_from: The checkpoint this run continues from, if any.
        also: What else of the earlier run is moved, all of it below ``output_dir``.

    Returns:
        Where the earlier run is now, ``None`` if there was none.
    """
    root = config.checkpoint_path
    if begun_from is not None and begun_from.resolve().parent == root.resolve():
        return move_aside(
            [path for _, path in list_checkpoints(root) if path.name > begun_from.name], config.output_dir
        )
    inside = (
        config.checkpoint_path,
        config.logs_path,
        config.render_path,
        config.output_dir / TRAJECTORIES,
        config.output_dir / REPLAY,
        config.output_dir / EVALUATION,
        config.output_dir / CONFIG,
        config.output_dir / RECORD,
        config.output_dir / OUTCOME,
        config.output_dir / NOTES,
        *also,
    )
    left = [path for path in inside if _holds_something(path) and _is_below(path, config.output_dir)]
    moved = move_aside(left, config.output_dir)
    if list_checkpoints(root):
        # Checkpoints elsewhere are lost if they are written over; logs and pages elsewhere may belong to many runs.
        moved = move_aside([path for _, path in list_checkpoints(root)], root) or moved
    return moved


def move_aside(paths: Iterable[Path], folder: Path) -> Path | None:
    """Move ``paths``, all below ``folder``, to the same places below a new folder beside it, and return that."""
    paths = list(paths)
    if not paths:
        return None
    number = 1
    while (aside := folder.with_name(f"{folder.resolve().name}.{number}")).exists():
        number += 1
    for path in paths:
        target = aside / path.resolve().relative_to(folder.resolve()) if _is_below(path, folder) else aside / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(path, target)
    return aside


def _holds_something(path: Path) -> bool:
    return path.is_file() or (path.is_dir() and any(path.iterdir()))


def _is_below(path: Path, folder: Path) -> bool:
    return path.resolve() != folder.resolve() and path.resolve().is_relative_to(folder.resolve())
