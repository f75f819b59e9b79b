"""The puzzles of reasoning_gym, graded by their own scorers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from roll.envs.adapters.libraries import library
from roll.envs.base import DEFAULT_ACTION_PATTERN, Outcome, TextEnv
from roll.envs.errors import EnvConfigError
from roll.rewards.puzzles import puzzles, score_answer

SOLVED = 1.0
"""The score of a right answer."""


class ReasoningGymEnv(TextEnv):
    """A question of a data set of reasoning_gym; its scorer says what an answer is worth, from 0 to 1.

    An answer that its scorer would evaluate as Python is read as text unless it is a plain expression.

    Answers after the first earn what they are better than the best before, so that an episode earns its best score.

    Args:
        dataset: Name of the data set, such as ``"chain_sum"``.
        config: Options of the data set itself, such as ``{"min_terms": 4}``.
        size: How many questions there are to draw from.
        questions_seed: Fixes these questions. As in the library, question i depends on ``questions_seed + i`` alone, so
            two tags have different ones if their seeds are at least ``size`` apart.
        max_steps: How many answers may be given.
        format_penalty: Added to the reward of a response without an answer.
        action_pattern: Finds the answer in a response; empty: the response is the answer.
        env_instruction: Replaces the generated instruction.
        render_mode: ``"ansi"``, ``"rgb_array"`` (a picture of the text) or ``None``.

    Raises:
        EnvConfigError: If there is no such data set, or an option cannot work.
        MissingDependencyError: If reasoning_gym is not installed.
    """

    def __init__(
        self,
        dataset: str,
        config: Mapping[str, Any] | None = None,
        size: int = 100_000,
        questions_seed: int = 0,
        max_steps: int = 1,
        format_penalty: float = 0.0,
        action_pattern: str | None = DEFAULT_ACTION_PATTERN,
        env_instruction: str | None = None,
        render_mode: str | None = "ansi",
    ) -> None:
        options = {**(config or {}), "size": size, "seed": questions_seed}
        self.dataset = dataset
        self.data = _data_set(dataset, json.dumps(options, sort_keys=True))
        self.best, self.scorer_failed = 0.0, False
        super().__init__(
            action_pattern=action_pattern,
            format_penalty=format_penalty,
            worst_reward=0.0,
            max_steps=max_steps,
            env_instruction=env_instruction,
            render_mode=render_mode,
            metrics_agg={"scorer_failed": "max"},
        )

    def start(self) -> str:
        """Draw a question."""
        self.entry: dict[str, Any] = self.data[int(self.np_random.integers(len(self.data)))]
        self.best, self.scorer_failed = 0.0, False
        return str(self.entry["question"])

    def act(self, action: str) -> Outcome:
        """Score an answer."""
        score, failed = score_answer(self.dataset, self.data, action, self.entry)
        self.scorer_failed = self.scorer_failed or failed
        earned, self.best = max(0.0, score - self.best), max(score, self.best)
        solved = score >= SOLVED
        over = solved or self._steps + 1 == self.max_steps
        said = "Right." if solved else f"Not right: {score:g} of 1."
        told = said if over else f"{said} Try again.\n{self.entry['question']}"
        return Outcome(told, {"score": earned}, over, solved)

    def state_metrics(self) -> dict[str, float]:
        """Return whether the scorer failed on an answer."""
        return {"scorer_failed": float(self.scorer_failed)}

    def solution(self) -> list[str] | None:
        """Return the answer that the data set knows, if its scorer accepts it."""
        answer = str(self.entry["answer"])
        return [answer] if score_answer(self.dataset, self.data, answer, self.entry)[0] >= SOLVED else None

    def describe(self) -> str:
        """Return what is asked of the policy, whatever the question."""
        again = "" if self.max_steps == 1 else f" You may answer {self.max_steps} times; the best answer counts."
        return f"Solve the problem.{again}"


def _data_set(name: str, options: str) -> Any:
    library("reasoning_gym.factory", "reasoning-gym")
    try:
        return puzzles(name, options)
    except ValueError as error:
        raise EnvConfigError(str(error)) from error
