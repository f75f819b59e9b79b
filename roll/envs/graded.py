"""Problems of files whose answers a verifier grades: multiple choice, programs under unit tests, and more."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roll.common.registry import UnknownNameError
from roll.envs.base import Outcome
from roll.envs.errors import EnvConfigError
from roll.envs.waiting import AsyncTextEnv
from roll.rewards.base import RewardRequest
from roll.rewards.registry import make_verifier


class GradedProblemsEnv(AsyncTextEnv):
    """Solve the problem.

    A row of RLVR's data as an environment. The verifier reads the whole response, and finds the answer itself. Answers
    after the first earn what they are better than the best before, so that an episode earns its best score.

    Args:
        file_name: Files of JSON lines with a question, and what the verifier needs beside it.
        verifier: Its name, such as ``multiple_choice`` or ``code``.
        options: Its options.
        prompt: The column of the question.
        max_steps: How many answers may be given.
        success_threshold: The score from which a problem is solved.
        worst: The least that the verifier gives.
        format_penalty: Added to the reward of a response without an answer.
        action_pattern: Finds what the verifier reads in a response; by default it reads the whole of it.
        env_instruction: Replaces what the policy is told.
        render_mode: ``"ansi"``, ``"rgb_array"`` (a picture of the text) or ``None``.

    Raises:
        EnvConfigError: A file cannot be read, or the verifier cannot be made.
    """

    def __init__(
        self,
        *,
        file_name: str | Sequence[str],
        verifier: str,
        options: Mapping[str, Any] | None = None,
        prompt: str = "prompt",
        max_steps: int | None = 1,
        success_threshold: float = 1.0,
        worst: float = 0.0,
        format_penalty: float = 0.0,
        action_pattern: str | None = None,
        env_instruction: str | None = None,
        render_mode: str | None = "ansi",
    ) -> None:
        try:
            self._verifier = make_verifier(verifier, dict(options or {}))
        except (UnknownNameError, ValueError, ImportError) as error:
            raise EnvConfigError(f"verifier={verifier!r}: {error}") from error
        names = (file_name,) if isinstance(file_name, str) else tuple(file_name)
        self._rows = _read(names, prompt)
        self._prompt, self._threshold = prompt, success_threshold
        self._row: Mapping[str, Any] = {}
        self._best = 0.0
        super().__init__(
            action_pattern=action_pattern,
            format_penalty=format_penalty,
            worst_reward=worst,
            max_steps=max_steps,
            env_instruction=env_instruction,
            render_mode=render_mode,
        )

    async def start(self) -> str:  # type: ignore[override]
        """Ask the question that the seed chooses."""
        self._row = self._rows[int(self.np_random.integers(len(self._rows)))]
        self._best = 0.0
        return str(self._row[self._prompt])

    async def act(self, action: str) -> Outcome:  # type: ignore[override]
        """Have the answer graded.

        Raises:
            RuntimeError: It could not be graded, which is no score of 0.
        """
        question, truth = str(self._row[self._prompt]), self._row.get("ground_truth")
        verdict = await self._verifier(
            RewardRequest(
                messages=[{"role": "user", "content": question}],
                response=action,
                ground_truth=None if truth is None else str(truth),
                row=self._row,
                tag=str(self._row.get("tag", "")),
            )
        )
        if verdict.score is None:
            raise RuntimeError(f"the answer could not be graded: {verdict.error}")
        first = not self._steps
        earned = verdict.score if first else max(0.0, verdict.score - self._best)
        self._best = verdict.score if first else max(verdict.score, self._best)
        solved = verdict.score >= self._threshold
        over = solved or self._steps + 1 == self.max_steps
        said = "Right." if solved else "Not right."
        told = said if over else f"{said} Try again.\n{question}"
        return Outcome(told, {"verifier": earned}, over, solved, metrics=verdict.metrics)

    async def close(self) -> None:  # type: ignore[override]
        """Close the verifier."""
        close = getattr(self._verifier, "close", None)
        if close is not None:
            await close()

    def solution(self) -> list[str] | None:
        """Return the right answer, where the row has one."""
        truth = self._row.get("ground_truth")
        return None if truth is None else [f"<answer>{truth}</answer>"]


@functools.lru_cache(maxsize=16)
def _read(names: tuple[str, ...], prompt: str) -> list[Mapping[str, Any]]:
    from roll.config.shipped import shipped_data

    rows: list[Mapping[str, Any]] = []
    for name in names:
        try:
            lines = shipped_data(Path(name)).read_text("utf-8").splitlines()
            found = [json.loads(line) for line in lines if line.strip()]
        except (OSError, ValueError) as error:
            raise EnvConfigError(f"file_name: {name} cannot be read as JSON lines: {error}") from error
        for number, row in enumerate(found, 1):
            if not isinstance(row, dict) or prompt not in row:
                raise EnvConfigError(f"{name}, line {number}: there is no column {prompt!r}")
        rows += found
    if not rows:
        raise EnvConfigError(f"file_name: there are no problems in {', '.join(names)}")
    return rows
