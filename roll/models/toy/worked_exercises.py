"""Problems that a teacher worked out in writing, as data of a run that learns from an expert, or imitates."""

from __future__ import annotations

from random import Random

from roll.data.problems import problem_set
from roll.models.toy.arithmetic import PERFECT, respond


class WorkedExercises:
    """A data set (``data_args.custom_cls``) with the columns ``prompt`` and ``response``: every step right.

    Args:
        problems: How many.
        tag: ``arithmetic``, ``word_problems`` or ``multiple_choice``.
        seed: Of the problems; with 0 they are the first of ``examples/data/arithmetic_train.jsonl``.
    """

    def __init__(self, problems: int = 1024, tag: str = "arithmetic", seed: int = 0) -> None:
        random = Random(f"{seed}/worked")
        self._rows = [
            {"prompt": problem.prompt, "response": respond(problem, PERFECT, random)}
            for problem in problem_set(tag, problems, seed=seed)
        ]

    def __len__(self) -> int:
        """Return the number of problems."""
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, str]:
        """Return problem ``index`` with its answer."""
        return self._rows[index]
