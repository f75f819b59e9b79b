"""Write the example data sets into roll/presets/data; the same bytes every time."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from roll.data.problems import LEVELS, SMALL, plainly, problem_set

DIRECTORY = Path(__file__).resolve().parent.parent / "roll" / "presets" / "data"
SIZES = {
    "arithmetic": (2048, 256),
    "word_problems": (2048, 128),
    "multiple_choice": (2048, 128),
    "sums": (512, 128),
    "small_sums": (320, 48),
    "small_stories": (512, 64),
}
"""Rows for training and for validation, by the name of the files."""
SUMS = "sums"
"""Files with exercises that are all posed in one way."""
EASY = {
    SUMS: ("arithmetic", LEVELS[:1]),
    "small_sums": ("arithmetic", (SMALL,)),
    "small_stories": ("word_problems", (SMALL, *LEVELS[:1])),
}
"""Generator and levels of the files that have not all levels."""


def write_problems(directory: Path, seed: int = 0) -> list[Path]:
    """Write ``<name>_train.jsonl`` and ``<name>_val.jsonl`` for every name of :data:`SIZES`; return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, counts in SIZES.items():
        tag, levels = EASY.get(name, (name, LEVELS))
        for split, count in zip(("train", "val"), counts, strict=True):
            problems = problem_set(tag, count, seed=seed, validation=split == "val", levels=levels)
            if name == SUMS:
                problems = [plainly(problem) for problem in problems]
            path = directory / f"{name}_{split}.jsonl"
            path.write_text("".join(json.dumps(problem.row()) + "\n" for problem in problems), encoding="utf-8")
            paths.append(path)
    return paths


def main() -> None:
    """Parse the command line and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=DIRECTORY, help="where to write (default: roll/presets/data)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for path in write_problems(arguments.out, arguments.seed):
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
