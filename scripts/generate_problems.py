"""Write the example data sets into roll/presets/data; the same bytes every time."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roll.data.countdown import puzzles
from roll.data.people import everybody, questions
from roll.data.problems import LARGE, LEVELS, SMALL, plainly, problem_set

DIRECTORY = Path(__file__).resolve().parent.parent / "roll" / "presets" / "data"
SIZES = {
    "arithmetic": (2048, 256),
    "word_problems": (2048, 128),
    "multiple_choice": (2048, 128),
    "sums": (512, 128),
    "small_sums": (320, 48),
    "small_stories": (512, 64),
    "large_arithmetic": (1024, 128),
    "large_word_problems": (1024, 128),
}
"""Rows for training and for validation, by the name of the files."""
PEOPLE = 640
"""Passages of the collection that is searched."""
QUESTIONS = (1024, 128)
"""Of its files for training and for validation."""
PUZZLES = (1024, 256)
"""Of its files for training and for validation."""
SUMS = "sums"
"""Files with exercises that are all posed in one way."""
OF_LEVELS = {
    SUMS: ("arithmetic", LEVELS[:1]),
    "small_sums": ("arithmetic", (SMALL,)),
    "small_stories": ("word_problems", (SMALL, *LEVELS[:1])),
    "large_arithmetic": ("arithmetic", (LARGE,)),
    "large_word_problems": ("word_problems", (LARGE,)),
}
"""Generator and levels of the files that have not all levels."""


def write_problems(directory: Path, seed: int = 0) -> list[Path]:
    """Write ``<name>_train.jsonl`` and ``<name>_val.jsonl`` for every name of :data:`SIZES`; return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, counts in SIZES.items():
        tag, levels = OF_LEVELS.get(name, (name, LEVELS))
        for split, count in zip(("train", "val"), counts, strict=True):
            problems = problem_set(tag, count, seed=seed, validation=split == "val", levels=levels)
            if name == SUMS:
                problems = [plainly(problem) for problem in problems]
            paths.append(_written(directory, f"{name}_{split}", [problem.row() for problem in problems]))
    return paths


def write_people(directory: Path, seed: int = 0) -> list[Path]:
    """Write ``people.jsonl``, the passages to search, and questions about some of them; return their paths."""
    people = everybody(PEOPLE, seed=seed)
    files = {"people": [{"text": person.told} for person in people]}
    for split, count in zip(("train", "val"), QUESTIONS, strict=True):
        asked = questions(people, count, seed=seed, validation=split == "val")
        files[f"people_{split}"] = [question.row() for question in asked]
    return [_written(directory, name, rows) for name, rows in files.items()]


def write_puzzles(directory: Path, seed: int = 0) -> list[Path]:
    """Write ``countdown_train.jsonl`` and ``countdown_val.jsonl``; return their paths."""
    drawn = {
        split: puzzles(count, seed=seed, validation=split == "val")
        for split, count in zip(("train", "val"), PUZZLES, strict=True)
    }
    return [_written(directory, f"countdown_{split}", [each.row() for each in rows]) for split, rows in drawn.items()]


def _written(directory: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    path = directory / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def main() -> None:
    """Parse the command line and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=DIRECTORY, help="where to write (default: roll/presets/data)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for write in (write_problems, write_people, write_puzzles):
        for path in write(arguments.out, arguments.seed):
            sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
