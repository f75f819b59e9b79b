"""Write the example data sets into examples/data; the same bytes every time."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from roll.data.problems import GENERATORS, problem_set

DIRECTORY = Path(__file__).resolve().parent.parent / "examples" / "data"
SIZES = {"arithmetic": (1024, 256), "word_problems": (512, 128), "multiple_choice": (512, 128)}
"""Rows for training and for validation."""


def write_problems(directory: Path, seed: int = 0) -> list[Path]:
    """Write ``<tag>_train.jsonl`` and ``<tag>_val.jsonl`` for every generator and return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for tag in GENERATORS:
        for split, count in zip(("train", "val"), SIZES[tag], strict=True):
            problems = problem_set(tag, count, seed=seed, validation=split == "val")
            path = directory / f"{tag}_{split}.jsonl"
            path.write_text("".join(json.dumps(problem.row()) + "\n" for problem in problems), encoding="utf-8")
            paths.append(path)
    return paths


def main() -> None:
    """Parse the command line and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=DIRECTORY, help="where to write (default: examples/data)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for path in write_problems(arguments.out, arguments.seed):
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
