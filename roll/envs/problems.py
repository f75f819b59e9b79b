"""Questions of a file, each with its right answer: one is asked, and the first answer counts."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roll.envs.base import DEFAULT_ACTION_PATTERN, Outcome, TextEnv
from roll.envs.errors import EnvConfigError
from roll.rewards.exact_numbers import equal_numbers, exact_number


class ProblemsEnv(TextEnv):
    """Answer the question.

    A problem of reinforcement learning with verifiable rewards as an environment: with tools, the policy may call them
    before it answers. Numbers are compared as numbers, all else as text without regard to case.

    Args:
        file_name: Files of JSON lines with ``prompt`` and ``ground_truth``, as RLVR reads them.
        action_pattern: Finds the answer in a response; see :class:`TextEnv`.
        format_penalty: Of a response without an answer.
        max_steps: Responses; the first answer ends the episode.
        env_instruction: Replaces what the policy is told.
    """

    def __init__(
        self,
        *,
        file_name: str | Sequence[str],
        action_pattern: str | None = DEFAULT_ACTION_PATTERN,
        format_penalty: float = 0.0,
        max_steps: int | None = 1,
        env_instruction: str | None = None,
    ) -> None:
        super().__init__(
            action_pattern=action_pattern,
            format_penalty=format_penalty,
            worst_reward=0.0,
            max_steps=max_steps,
            env_instruction=env_instruction,
        )
        names = (file_name,) if isinstance(file_name, str) else tuple(file_name)
        self._rows = read_problems(names)
        self._right = ""

    def start(self) -> str:
        """Ask the question that the seed chooses."""
        question, self._right = self._rows[int(self.np_random.integers(len(self._rows)))]
        return question

    def act(self, action: str) -> Outcome:
        """Compare the answer."""
        right = is_right(action, self._right)
        return Outcome("Right." if right else "Wrong.", {"right": float(right)}, terminated=True, success=right)


def is_right(answer: str, gold: str) -> bool:
    """Return whether an answer is the right one: numbers as numbers, all else as text without regard to case."""
    numbers = exact_number(gold), exact_number(answer)
    if numbers[0] is not None and numbers[1] is not None:
        return equal_numbers(numbers[0], numbers[1])
    return answer.strip().casefold() == gold.strip().casefold()


@functools.lru_cache(maxsize=16)
def read_problems(names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return questions with their right answers, of files of JSON lines with ``prompt`` and ``ground_truth``.

    Raises:
        EnvConfigError: A file cannot be read, or a line of it is no problem.
    """
    from roll.config.shipped import shipped_data

    rows = []
    for name in names:
        path = shipped_data(Path(name))
        try:
            lines = path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise EnvConfigError(f"file_name: {name} cannot be read: {error}") from error
        rows += [_row(name, number, line) for number, line in enumerate(lines, 1)]
    if not rows:
        raise EnvConfigError(f"file_name: there are no problems in {', '.join(names)}")
    return rows


def _row(name: str, number: int, line: str) -> tuple[str, str]:
    try:
        row: Any = json.loads(line)
        return str(row["prompt"]), str(row["ground_truth"])
    except (ValueError, KeyError, TypeError) as error:
        raise EnvConfigError(
            f"{name}, line {number}: expected `prompt` and `ground_truth`, got {line[:80]!r}"
        ) from error
