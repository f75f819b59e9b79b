"""Colossal Cave Adventure: the game `advent` of Debian's package open-adventure, with its own score."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from functools import lru_cache
from typing import Final

from roll.envs.base import DEFAULT_ACTION_PATTERN, Outcome, TextEnv
from roll.envs.errors import EnvConfigError, MissingDependencyError

MOST_POINTS: Final = 430
_FORBIDDEN: Final = ("save", "suspe", "pause", "resum", "resta", "resto", "seed", "waste")
"""Words that write files, read files, or choose the game's luck; the game knows five letters of a word."""
_PROMPT: Final = re.compile(r"^> ", re.MULTILINE)
_SCORED: Final = re.compile(r"You scored (-?\d+) out of a possible \d+, using (\d+) turns?\.")
_LONGEST: Final = 80
_OPENING: Final = ("no", "seed {seed}")
"""No instructions, which the policy has already; and the luck of dwarves and pits."""


class OpenAdventureEnv(TextEnv):
    """You explore Colossal Cave: find treasures and bring them to the building where you begin.

    The program is run anew for every command with all that were given before, in some milliseconds: it is then asked
    for the score without a turn of the game, and an episode is its seed and its commands, which :attr:`commands` has.
    Points are rewarded as they are earned; all there are make 1. Commands that save, restore or seed the game are
    refused.

    Args:
        success_score: Points from which the episode counts as solved; the game goes on.
        program: Name or path of the game.
        seconds: For one run of the program.
        max_steps: The episode is truncated after so many commands.
        format_penalty: Added to the reward of a response without a command.
        action_pattern: Finds the command in a response; empty: the response is the command.
        env_instruction: Replaces the generated instruction.
        render_mode: ``"ansi"``, ``"rgb_array"`` (a picture of the text) or ``None``.

    Raises:
        MissingDependencyError: The game is not installed.
    """

    def __init__(
        self,
        success_score: int = 100,
        program: str = "advent",
        seconds: float = 10.0,
        max_steps: int | None = 300,
        format_penalty: float = 0.0,
        action_pattern: str | None = DEFAULT_ACTION_PATTERN,
        env_instruction: str | None = None,
        render_mode: str | None = "ansi",
    ) -> None:
        self._program = _found(program)
        if not 0 < success_score <= MOST_POINTS:
            raise EnvConfigError(f"success_score={success_score}: must be from 1 to {MOST_POINTS}")
        self._success, self._seconds = success_score, float(seconds)
        self.commands: list[str] = []
        self.score = 0
        super().__init__(
            action_pattern=action_pattern,
            format_penalty=format_penalty,
            worst_reward=-0.2,  # the game takes 10 points for a death, 5 for a hint
            max_steps=max_steps,
            env_instruction=env_instruction,
            render_mode=render_mode,
        )

    def start(self) -> str:
        """Begin a game whose luck is drawn from ours."""
        seed = int(self.np_random.integers(1, 1 << 20))
        self.commands = [each.format(seed=seed) for each in _OPENING]
        told, self.score, _ = self._played()
        return told[0]  # what it says before its luck is chosen

    def act(self, action: str) -> Outcome:
        """Give a command."""
        words = " ".join(action.split())[:_LONGEST]
        if any(word.lower().startswith(_FORBIDDEN) for word in words.split()):
            return Outcome("That command is not possible here.", {"points": 0.0}, effective=False)
        before, seen = self.score, self._observation
        self.commands.append(words)
        (*_, told), self.score, over = self._played()
        points = {"points": (self.score - before) / MOST_POINTS}
        return Outcome(told, points, over, self.score >= self._success, told != seen)

    def state_metrics(self) -> dict[str, float]:
        """Return the points of the game so far."""
        return {"score": float(self.score)}

    def describe(self) -> str:
        """Return what the game is about, and how it is spoken to."""
        return (
            "You explore Colossal Cave: find treasures and bring them to the building where you begin. A command has "
            "one or two words, such as: in, north, take lamp, light lamp, unlock grate, inventory, look. The first "
            "five letters of a word count."
        )

    def _played(self) -> tuple[list[str], int, bool]:
        """Run the game; return what it said to each command, the score, and whether it is over.

        Raises:
            RuntimeError: The program did not end as the game does.
        """
        # An empty line is no turn, and is asked for only by a game that goes on.
        given = "".join(f"{command}\n" for command in [*self.commands, ""])
        done = subprocess.run(
            [self._program],
            input=given.encode("ascii", "replace"),
            capture_output=True,
            timeout=self._seconds,
            cwd=tempfile.gettempdir(),
            check=False,
        )
        text = done.stdout.decode("utf-8", "replace")
        scored = list(_SCORED.finditer(text))
        if done.returncode or not text:
            raise RuntimeError(f"{self._program} ended with code {done.returncode} after {text[-200:]!r}")
        pieces = _PROMPT.split(text)
        over = len(pieces) <= len(self.commands) + 1
        said = [piece.partition("\n")[2].strip() for piece in (pieces[1:] if over else pieces[1:-1])]
        # In the middle of a question of its own the game ends without telling the score.
        return said, int(scored[-1][1]) if scored else self.score, over


@lru_cache(maxsize=8)
def _found(program: str) -> str:
    found = shutil.which(program) or shutil.which(program, path="/usr/games:/usr/local/games")
    if found is None:
        raise MissingDependencyError(
            f"it needs the game {program}, which is not installed. Try: apt-get install open-adventure"
        )
    return found
