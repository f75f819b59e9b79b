"""A debate: seats argue about a question in turn, and a judge says who earns what."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from roll.envs.errors import EnvConfigError
from roll.envs.problems import is_right, read_problems
from roll.envs.seat_programs import Program, program_of
from roll.envs.seated import POLICY, Player, SeatedEnv

REWARDS: Final = "rewards"
"""As a judge: the verifiers that a run's ``rewards`` name for the tag."""

_ANSWER: Final = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_VERDICT: Final = re.compile(r"\d+")
_INSTRUCTION: Final = (
    "You debate a question with another speaker. Say briefly why your answer is right and theirs is wrong, and end "
    "with your answer in this format: <answer>your answer</answer>\nYour last answer counts. You may change your mind."
)


class DebateGame:
    """Speakers who argue about a question for some rounds; see :class:`roll.envs.seats.SeatedGame`.

    Args:
        problems: Questions with their right answers.
        rounds: How often each speaks.
        judge: Makes what decides who won, of all that was said; ``None`` compares last answers with the right one, and
            :data:`REWARDS` leaves it to others: nobody earns anything here.
        longest: Most characters of a speech that the other hears.
    """

    seats = ("first", "second")

    def __init__(
        self, problems: Sequence[tuple[str, str]], rounds: int, judge: Callable[[], Program] | str | None, longest: int
    ) -> None:
        self._problems, self._rounds, self._longest = problems, rounds, longest
        self._judge = judge
        self._said: list[str] = []
        self._heard = [0, 0]
        self._earned = [0.0, 0.0]

    def begin(self, luck: np.random.Generator) -> None:
        """Ask the question that ``luck`` chooses."""
        self._luck = luck
        self._question, self._right = self._problems[int(luck.integers(len(self._problems)))]
        self._said, self._heard, self._earned = [], [0, 0], [0.0, 0.0]

    @property
    def turn(self) -> int | None:
        """The seat that speaks next; ``None`` when everybody spoke in every round."""
        spoken = len(self._said)
        return None if spoken >= self._rounds * len(self.seats) else spoken % len(self.seats)

    def told(self, seat: int) -> str:
        """Return the question at first, and what the other said since this seat spoke."""
        known, self._heard[seat] = self._heard[seat], len(self._said)
        others = [
            f"The other speaker: {said[: self._longest]}"
            for number, said in enumerate(self._said[known:], known)
            if number % len(self.seats) != seat
        ]
        begun = any(number % len(self.seats) == seat for number in range(len(self._said)))
        return "\n".join([*([] if begun else [f"Question: {self._question}"]), *others])

    def move(self, seat: int, action: str) -> bool:
        """Speak; return whether the speech had an answer. After the last one the judge decides."""
        self._said.append(action)
        if self.turn is None:
            self._earned = self._verdict()
        return _answer_in(action) is not None

    def earned(self, seat: int) -> float:
        """Return 1 to who was right, or won, and -1 to who was not: something at the end only."""
        return self._earned[seat]

    def ending(self, seat: int) -> str:
        """Return how it ended, without the right answer; where others judge, what the seat did not hear so far."""
        if self._judge == REWARDS:
            return self.told(seat) or "The debate is over."
        return "The judge agrees with you." if self._earned[seat] > 0 else "The judge does not agree with you."

    def _verdict(self) -> list[float]:
        if isinstance(self._judge, str):
            return [0.0, 0.0]
        if self._judge is None:
            last = self._said[-len(self.seats) :]
            answers = [_answer_in(said) for said in last]
            return [1.0 if answer is not None and is_right(answer, self._right) else -1.0 for answer in answers]
        judge = self._judge()
        try:
            winner = _VERDICT.findall(judge(self._transcript(), self._luck))
        finally:
            getattr(judge, "close", lambda: None)()
        # A judge that names nobody, or somebody who is not there, lets nobody win.
        return [1.0 if winner and int(winner[-1]) == seat else -1.0 for seat in range(len(self.seats))]

    def _transcript(self) -> str:
        """Return what a judge reads; the moves that it may make stand at its end, as for a player."""
        said = [f"Speaker {number % len(self.seats)}: {each}" for number, each in enumerate(self._said)]
        asked = "Who is right? Available moves: [0] for speaker 0, [1] for speaker 1."
        return "\n".join([f"Question: {self._question}", *said, asked])


class DebateEnv(SeatedEnv):
    """Argue about a question with another speaker.

    Each speaks ``rounds`` times, and hears the other. In the end each earns 1 or -1: by default for a last answer that
    is right or not, with a ``judge`` for whom it finds right.

    Args:
        file_name: Files of JSON lines with ``prompt`` and ``ground_truth``, as RLVR reads them.
        seats: Who has each seat; see :class:`roll.envs.seated.SeatedEnv`.
        rounds: How often each speaks.
        judge: ``module:function`` or an endpoint, as for seats: it reads the debate, and the last number of what it
            says is the speaker who won, 0 or 1. ``None``: last answers are compared with the right one. ``rewards``:
            the verifiers that the run's ``rewards`` name for the tag, such as ``llm_judge``, grade each seat.
        shuffle: Whether the seed draws who has which seat.
        longest: Most characters of a speech that the other hears.
        max_steps: The episode is truncated after so many speeches of a seat.
        format_penalty: Added to the reward of an empty response.
        env_instruction: Replaces the instruction.
        render_mode: ``"ansi"``, ``"rgb_array"`` (a picture of the text) or ``None``.

    Raises:
        EnvConfigError: A file cannot be read, there is no such program, or an option cannot work.
    """

    def __init__(
        self,
        *,
        file_name: str | Sequence[str],
        seats: Sequence[Player] = (POLICY, POLICY),
        rounds: int = 2,
        judge: Player | None = None,
        shuffle: bool = True,
        longest: int = 2000,
        max_steps: int | None = None,
        format_penalty: float = 0.0,
        env_instruction: str | None = None,
        render_mode: str | None = "ansi",
    ) -> None:
        if int(rounds) < 1 or int(longest) < 1:
            raise EnvConfigError(f"rounds={rounds}, longest={longest}: both must be at least 1")
        names = (file_name,) if isinstance(file_name, str) else tuple(file_name)
        try:
            decide = judge if judge is None or judge == REWARDS else program_of(judge)
        except EnvConfigError as error:
            raise EnvConfigError(f"judge: {error}") from error
        self.graded_by_rewards = judge == REWARDS
        options: dict[str, Any] = {"format_penalty": format_penalty, "render_mode": render_mode}
        super().__init__(
            DebateGame(read_problems(names), int(rounds), decide, int(longest)),
            seats,
            shuffle,
            action_pattern="",
            worst_reward=-1.0,
            max_steps=max_steps,
            env_instruction=env_instruction or _INSTRUCTION,
            **options,
        )


def _answer_in(said: str) -> str | None:
    """Return the last answer of a speech."""
    found = _ANSWER.findall(said)
    return found[-1].strip() if found else None
