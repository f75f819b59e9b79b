"""Data sets of reasoning_gym as prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from roll.rewards.puzzles import puzzles


class Puzzles:
    """Rows for the verifier ``reasoning_gym``, made as they are asked for: ``custom_cls`` of ``data_args``.

    Args:
        dataset: Name of the data set.
        size: How many questions.
        seed: Fixes them. As in the library, question i depends on ``seed + i`` alone: other data needs a seed that is
            at least ``size`` away.
        config: Options of the data set itself, such as ``{"min_terms": 4}``.

    Raises:
        ImportError: reasoning_gym is not installed.
        ValueError: There is no such data set, or an option cannot work.
    """

    def __init__(self, dataset: str, size: int = 1000, seed: int = 0, config: Mapping[str, Any] | None = None) -> None:
        self._dataset = dataset
        self._options = json.dumps({**(config or {}), "size": size, "seed": seed}, sort_keys=True)
        self._entries = puzzles(dataset, self._options)

    def __len__(self) -> int:
        """Return the number of questions."""
        return len(self._entries)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a question with what its verifier needs."""
        entry = self._entries[index]
        puzzle = {"dataset": self._dataset, "options": self._options, "index": index}
        return {
            "prompt": entry["question"],
            "question": entry["question"],
            "ground_truth": str(entry["answer"]),
            "tag": self._dataset,
            "puzzle": json.dumps(puzzle, sort_keys=True),
        }
