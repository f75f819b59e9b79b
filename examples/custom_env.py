"""A new environment in one file, and a policy that learns it in about a minute: ``python examples/custom_env.py``.

Any key can be changed on the command line: ``python examples/custom_env.py max_steps=20 seed=1``.
"""

from __future__ import annotations

from pathlib import Path

from roll.config import AgenticConfig, launch
from roll.envs import Outcome, TextEnv, register_env

MOVES = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}


@register_env("treasure_hunt", max_steps=8)
class TreasureHunt(TextEnv):
    """Find the treasure of the cave: the old map says that it lies in the corner at the bottom right."""

    def __init__(self, size: int = 5, max_steps: int = 8, format_penalty: float = -0.1) -> None:
        # `actions` lists what the policy may answer; leave it out where an answer is free text.
        super().__init__(actions=list(MOVES), max_steps=max_steps, format_penalty=format_penalty, worst_reward=-0.3)
        self.size = size

    def start(self) -> str:
        """Enter the cave somewhere else; self.np_random makes the seed fix where."""
        self.row, self.column = divmod(int(self.np_random.integers(self.size**2 - 1)), self.size)
        return self.look()

    def act(self, action: str) -> Outcome:
        """Walk one step; the reward parts add up to the reward."""
        before = self.steps_left()
        down, right = MOVES[action]
        self.row = min(max(self.row + down, 0), self.size - 1)
        self.column = min(max(self.column + right, 0), self.size - 1)
        if self.steps_left() == 0:
            return Outcome("You found the treasure.", {"found": 1.0}, terminated=True, success=True)
        return Outcome(self.look(), {"step": -0.1, "closer": 0.2 * (before - self.steps_left())})

    def look(self) -> str:
        """Say where the player is."""
        return f"You are in row {self.row + 1}, column {self.column + 1}."

    def steps_left(self) -> int:
        """Count the steps to the treasure."""
        return 2 * (self.size - 1) - self.row - self.column


def run(config: AgenticConfig) -> object:
    """Train on it. The heavy imports happen only once the configuration is known to be good."""
    from roll.pipelines.agentic import run_agentic

    return run_agentic(config)


if __name__ == "__main__":
    launch(run, config_dir=Path(__file__).parent / "config", config_name="custom_env")
