"""``python -m roll.viewer PATH``: make review pages from stored trajectories."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from roll.trajectories.store import read_origin, read_trajectories
from roll.viewer.pages import write_index, write_step


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages and print the path of their index; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m roll.viewer", description="Make review pages from stored trajectories."
    )
    parser.add_argument("path", type=Path, help="a trajectory parquet file, or a directory that holds some")
    parser.add_argument("--out", type=Path, help="directory for the pages (default: pages/ beside the file)")
    parser.add_argument("--phase", choices=("train", "val", "all"), help="default: val where there is any, else train")
    parser.add_argument("--limit", type=int, default=32, help="pages in all, 0 for every one (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        files = find_files(options.path, options.phase)
        index, written, skipped = make_pages(files, options.out or _default_out(options.path), options.limit)
    except (FileNotFoundError, ValueError) as error:
        sys.stderr.write(f"roll.viewer: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("Stopped.\n")
        return 130
    if skipped:
        sys.stderr.write(f"{written} pages; {skipped} more trajectories are stored: --limit 0 makes a page of each\n")
    sys.stdout.write(f"{index}\n")
    return 0


def find_files(path: Path, phase: str | None) -> list[Path]:
    """Return the trajectory files of ``path`` in the order of their steps.

    Args:
        path: A file, or a directory searched to any depth.
        phase: ``"train"``, ``"val"``, ``"all"``, or ``None`` for ``val`` where there is any, else ``train``. Does not
            matter where ``path`` is a file.

    Raises:
        FileNotFoundError: There is none.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise FileNotFoundError(f"{path} does not exist; give a trajectory file or the output directory of a run")
    files = sorted(path.rglob("*step=*.parquet"))
    by_phase = {"val": [file for file in files if file.name.startswith("val_")]}
    by_phase["train"] = [file for file in files if not file.name.startswith("val_")]
    by_phase["all"] = files
    chosen = by_phase[phase or ("val" if by_phase["val"] else "train")]
    if not chosen:
        what = "trajectory files" if phase in (None, "all") else f"trajectory files of phase {phase}"
        raise FileNotFoundError(f"{path} holds no {what} (step=….parquet, val_step=….parquet) at any depth")
    return chosen


def make_pages(files: Sequence[Path], directory: Path, limit: int) -> tuple[Path, int, int]:
    """Write pages of the trajectories in files, equally many of each file; of more files than pages, of the newest.

    Args:
        files: Trajectory files, in the order of their steps.
        directory: Where pages go.
        limit: Pages in all; 0 for a page of every trajectory.

    Returns:
        The index, the number of pages written, and of trajectories left out by ``limit``.
    """
    written = skipped = 0
    run = ""
    for number, file in enumerate(files):
        origin = read_origin(file)
        run = origin.run or run
        trajectories = read_trajectories(file)
        # What earlier files did not use up is shared among the rest.
        share = -(-(limit - written) // (len(files) - number)) if limit else len(trajectories)
        if limit and len(files) - number > limit - written:
            share = 0
        shown = trajectories[:share]
        if shown:
            write_step(shown, directory, title=run, step=origin.step, of=trajectories)
        written += len(shown)
        skipped += len(trajectories) - len(shown)
    return write_index(directory, title=run or "Trajectories"), written, skipped


def _default_out(path: Path) -> Path:
    """Return where pages go by default."""
    return (path.parent if path.is_file() else path) / "pages"


if __name__ == "__main__":
    sys.exit(main())
