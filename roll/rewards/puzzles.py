"""The puzzles of reasoning_gym: its data sets, and the verifier that grades with their own scorers."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from roll.common.spelling import did_you_mean
from roll.rewards.answers import after_thinking, check_places, marked_answer
from roll.rewards.base import RewardRequest, Verdict
from roll.rewards.plain_expressions import is_plain
from roll.rewards.registry import register_verifier, row_name
from roll.rewards.worker_processes import WorkerCallError, WorkerDiedError, WorkerProcesses

EVALUATING: Final = frozenset(
    "binary_matrix countdown intermediate_integration n_queens polynomial_multiplication puzzle24 simple_integration "
    "spiral_matrix string_insertion".split()
)
"""Data sets whose scorers evaluate an answer as Python, whatever it does. Here only plain expressions reach them."""
_IN_THEIR_OWN_SCOPE: Final = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Of these, data sets where a name is a variable of the scorer, which knows the right answer."""

PAYS_FOR_RUBBISH: Final = frozenset({"game_of_life_halting"})
"""Data sets whose scorers give full marks to an answer that is none."""


@lru_cache(maxsize=64)
def puzzles(dataset: str, options: str) -> Any:
    """Return a data set of reasoning_gym; all who ask in this process share it, since some read large files of words.

    Args:
        dataset: Its name.
        options: Its own options, with ``size`` and ``seed``, as JSON.

    Raises:
        ImportError: The library is not installed.
        ValueError: There is no such data set, or an option cannot work.
    """
    factory = importlib.import_module("reasoning_gym.factory")
    if dataset not in factory.DATASETS:
        raise ValueError(f"dataset={dataset!r} is not in reasoning_gym. {did_you_mean(dataset, factory.DATASETS)}")
    if dataset in PAYS_FOR_RUBBISH:
        raise ValueError(f"dataset={dataset!r} teaches nothing: its scorer gives full marks to answers that are none")
    try:
        return factory.create_dataset(dataset, **json.loads(options))
    except (AssertionError, TypeError, ValueError) as error:
        raise ValueError(f"dataset={dataset!r}, config={options}: {error}") from error


def score_answer(dataset: str, data: Any, answer: str, entry: Mapping[str, Any]) -> tuple[float, bool]:
    """Return the score of an answer, from 0 to 1, and whether the scorer failed on it: some expect a number.

    What a scorer would evaluate, and is no plain expression, is never given to it: it is right if it is the text of the
    right answer.

    Args:
        dataset: Name of the data set.
        data: The data set.
        answer: The answer.
        entry: The question's entry in the data set.
    """
    if dataset in EVALUATING and not is_plain(answer, letters=dataset not in _IN_THEIR_OWN_SCOPE):
        return float(answer.strip() == str(entry["answer"]).strip()), False
    try:
        return float(data.score_answer(answer=answer, entry=entry)), False
    except Exception:
        return 0.0, True


def graded(puzzle: str, question: str, answer: str) -> tuple[float, bool]:
    """Return what :func:`score_answer` says of an answer to a question.

    Args:
        puzzle: ``dataset``, ``options`` and ``index`` of the question, as JSON.
        question: The question that was asked.
        answer: The answer.

    Raises:
        ValueError: The data set does not have that question there.
    """
    which = json.loads(puzzle)
    data = puzzles(which["dataset"], which["options"])
    entry = data[which["index"]]
    if entry["question"] != question:
        raise ValueError(
            f"question {which['index']} of {which['dataset']} is another one here: this version of reasoning_gym makes "
            "other questions than the one that the data was made with"
        )
    return score_answer(which["dataset"], data, answer, entry)


@register_verifier("reasoning_gym", needs_row=("puzzle", "question"))
class ReasoningGym:
    """The score that a data set of reasoning_gym gives an answer, from 0 to 1. ``Puzzles`` makes such rows.

    Args:
        answer_in: Where the answer is looked for, in order of preference; a response without any of these marks is the
            answer.

    Raises:
        ValueError: A place is unknown.
    """

    def __init__(self, answer_in: tuple[str, ...] = ("tag", "boxed", "hash")) -> None:
        self._places = check_places(answer_in)
        self._processes = WorkerProcesses(graded)

    async def __call__(self, request: RewardRequest) -> Verdict:
        """Ask the scorer of the row's data set."""
        text = after_thinking(request.response)
        answer = marked_answer(text, self._places, cut_off=request.finish_reason == "length")
        answer = text.strip() if answer is None else answer
        try:
            score, failed = await self._processes.call(request.row["puzzle"], request.row["question"], answer)
        except (WorkerCallError, WorkerDiedError) as error:
            return Verdict(None, error=f"{row_name(request)}: {error}")
        return Verdict(score, {"scorer_failed": float(failed)})

    async def close(self) -> None:
        """End the processes."""
        await self._processes.close()
