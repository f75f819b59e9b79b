"""Answers to generated arithmetic that somebody graded: in pairs, each by itself, and step by step."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from roll.data.problems import LEVELS, Problem, draw
from roll.models.toy.arithmetic import Habits, respond, work_out

_TAG: Final = "arithmetic"
_HABITS: Final = Habits(guesses=(0.25, 0.4, 0.5, 0.5), forgets=0.25, slips=0.15)


class ComparedAnswers:
    """A data set (``data_args.custom_cls``) of pairs: ``prompt``, ``chosen`` (right) and ``rejected`` (wrong).

    Both answers are a careless teacher's, who works out or guesses, and slips.

    Args:
        pairs: How many.
        noise: Share of pairs that are the wrong way round.
        validation: Whether the exercises are those that are held out.
        seed: Of problems and answers.
    """

    def __init__(self, pairs: int = 2048, noise: float = 0.0, validation: bool = False, seed: int = 0) -> None:
        random = Random(f"{seed}/compared")
        self._rows: list[dict[str, Any]] = []
        for _ in range(pairs):
            problem = draw(_TAG, random.choice(LEVELS), random, validation=validation)
            answers = [_answer(problem, right, random) for right in (True, False)]
            chosen, rejected = answers if random.random() >= noise else reversed(answers)
            self._rows.append({"prompt": problem.prompt, "chosen": chosen, "rejected": rejected})

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return pair ``index``."""
        return self._rows[index]


class JudgedAnswers:
    """A data set (``data_args.custom_cls``) of answers by themselves: ``prompt``, ``completion`` and ``label``.

    Args:
        answers: How many.
        right: Share of them that are right.
        noise: Share of labels that say the opposite.
        validation: Whether the exercises are those that are held out.
        seed: Of problems, answers and labels.
    """

    def __init__(
        self, answers: int = 2048, right: float = 0.5, noise: float = 0.0, validation: bool = False, seed: int = 0
    ) -> None:
        random = Random(f"{seed}/judged")
        self._rows: list[dict[str, Any]] = []
        for _ in range(answers):
            problem = draw(_TAG, random.choice(LEVELS), random, validation=validation)
            is_right = random.random() < right
            said, label = _answer(problem, is_right, random), is_right == (random.random() >= noise)
            self._rows.append({"prompt": problem.prompt, "completion": said, "label": label})

    def __len__(self) -> int:
        """Return the number of answers."""
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return answer ``index``."""
        return self._rows[index]


class CheckedSteps:
    """A data set (``data_args.custom_cls``) of workings: ``prompt``, ``completions`` (steps) and ``labels``.

    A step is right where it is that of the right working, and so are all before it. Joined with spaces, the steps are
    an answer as the toy policy writes it.

    Args:
        workings: How many.
        slips: How often a step has any number for its result.
        validation: Whether the exercises are those that are held out.
        seed: Of problems and slips.
    """

    def __init__(self, workings: int = 2048, slips: float = 0.3, validation: bool = False, seed: int = 0) -> None:
        random = Random(f"{seed}/checked")

        def slip(value: int) -> int:
            return random.randint(0, 99) if random.random() < slips else value

        self._rows: list[dict[str, Any]] = []
        for _ in range(workings):
            problem = draw(_TAG, random.choice(LEVELS), random, validation=validation)
            right, _ = work_out(problem.exercise)
            steps, value = work_out(problem.exercise, slip)
            labels = [steps[: place + 1] == right[: place + 1] for place in range(len(steps))]
            steps[0] = f"<think>{steps[0]}"
            steps[-1] += f"</think><answer>{value}</answer>"
            self._rows.append({"prompt": problem.prompt, "completions": steps, "labels": labels})

    def __len__(self) -> int:
        """Return the number of workings."""
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return working ``index``."""
        return self._rows[index]


def _answer(problem: Problem, right: bool, random: Random) -> str:
    """Return an answer that is right, or one that is wrong."""
    while True:
        said = respond(problem, _HABITS, random)
        if said.endswith(f"<answer>{problem.ground_truth}</answer>") == right:
            return said
