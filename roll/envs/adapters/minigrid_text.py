"""The worlds of MiniGrid and the missions of BabyAI, with what the agent sees in words."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from typing import Any, cast

import gymnasium
import numpy as np

from roll.common.spelling import did_you_mean
from roll.envs.adapters.libraries import library
from roll.envs.base import DEFAULT_ACTION_PATTERN, Outcome, TextEnv
from roll.envs.errors import EnvConfigError

ACTIONS = ("Turn left", "Turn right", "Forward", "Pick up", "Drop", "Toggle", "Done")
"""Names of MiniGrid's actions from 0 on."""
_TILE = 32
_GROUND = ("wall", "floor")


class MiniGridEnv(TextEnv):
    """A world of MiniGrid or a mission of BabyAI: the agent sees a square in front of it, and is told what is there.

    It is rewarded by the world itself: from 1 down to 0.1 for the mission, less the longer it took.

    Args:
        game: Id of the world, such as ``"BabyAI-GoToRedBall-v0"`` or ``"MiniGrid-DoorKey-5x5-v0"``.
        game_options: Options of the world itself, such as ``{"size": 8}``.
        worst: The least that the world pays for an action; -1 in those with moving obstacles.
        max_steps: The episode is truncated after so many steps; it is the world's own limit too, by which it rewards.
        format_penalty: Added to the reward of a response without a valid action.
        action_pattern: Finds the action in a response; empty: the response is the action.
        env_instruction: Replaces the generated instruction.
        render_mode: ``"ansi"``, ``"rgb_array"`` (the whole world, 32 pixels per cell) or ``None``.

    Raises:
        EnvConfigError: If there is no such world, or an option cannot work.
        MissingDependencyError: If minigrid is not installed.
    """

    def __init__(
        self,
        game: str,
        game_options: Mapping[str, Any] | None = None,
        worst: float = 0.0,
        max_steps: int = 64,
        format_penalty: float = 0.0,
        action_pattern: str | None = DEFAULT_ACTION_PATTERN,
        env_instruction: str | None = None,
        render_mode: str | None = "ansi",
    ) -> None:
        if game not in _worlds():
            raise EnvConfigError(f"game={game!r} is not in minigrid. {did_you_mean(game, _worlds())}")
        try:
            made = gymnasium.make(game, max_episode_steps=-1, disable_env_checker=True, **dict(game_options or {}))
        except (gymnasium.error.Error, AssertionError, TypeError, ValueError) as error:
            raise EnvConfigError(f"game={game!r}, game_options={game_options}: {error}") from error
        self.world = cast(Any, made.unwrapped)
        super().__init__(
            actions=ACTIONS[: int(self.world.action_space.n)],
            action_pattern=action_pattern,
            format_penalty=format_penalty,
            worst_reward=worst,
            max_steps=max_steps,
            env_instruction=env_instruction,
            render_mode=render_mode,
        )

    def start(self) -> str:
        """Reset the world with a seed drawn from ours."""
        seen, _ = self.world.reset(seed=int(self.np_random.integers(1 << 31)))
        self.world.max_steps = self.max_steps
        return self._told(seen)

    def act(self, action: str) -> Outcome:
        """Step the world."""
        before = self._state()
        seen, reward, terminated, _, _ = self.world.step(ACTIONS.index(action))
        success = bool(terminated and reward > 0)
        return Outcome(self._told(seen), {"mission": float(reward)}, bool(terminated), success, self._state() != before)

    def solution(self) -> list[str] | None:
        """Return what BabyAI's own bot does; ``None`` in other worlds, and where it gives up."""
        if not hasattr(self.world, "instrs"):
            return None
        world, taken, action = deepcopy(self.world), [], None
        bot = library("minigrid.utils.baby_ai_bot", "minigrid").BabyAIBot(world)
        while world.step_count < self.world.max_steps:
            action = bot.replan(action)
            taken.append(ACTIONS[int(action)])
            _, reward, terminated, _, _ = world.step(action)
            if terminated:
                return taken if reward > 0 else None
        return None

    def describe(self) -> str:
        """Return the task, and how the world is told."""
        return (
            "You move through a world of square cells, one step or one quarter turn at a time, and carry out a "
            "mission. You see only what is before you and to the sides. Pick up, drop and toggle (open, close, unlock) "
            "act on the cell right in front of you; to drop needs an empty one."
        )

    def image(self) -> np.ndarray:
        """Return a picture of the whole world, ``uint8 [rows * 32, columns * 32, 3]``."""
        picture: np.ndarray = self.world.get_frame(tile_size=_TILE)
        return picture

    def _state(self) -> tuple[Any, ...]:
        world = self.world
        return tuple(map(int, world.agent_pos)), int(world.agent_dir), world.carrying, world.grid.encode().tobytes()

    def _told(self, seen: Mapping[str, Any]) -> str:
        """Return the mission, what the agent sees, nearest first, and what it carries."""
        view, visible = self.world.gen_obs_grid()
        column, row = view.width // 2, view.height - 1  # where the agent stands in its own view, looking up
        lines = []
        for y in range(view.height):
            for x in range(view.width):
                thing = view.get(x, y)
                if visible[x, y] and (x, y) != (column, row) and thing is not None and thing.type not in _GROUND:
                    lines.append((abs(x - column) + row - y, f"- {_name(thing)}: {_place(row - y, x - column)}"))
        ahead = view.get(column, row - 1)
        front = "nothing" if ahead is None else _name(ahead)
        carried = "nothing" if self.world.carrying is None else _name(self.world.carrying)
        free = next(
            (n for n in range(row) if (there := view.get(column, row - 1 - n)) and not there.can_overlap()), row
        )
        return "\n".join(
            [
                f"Mission: {seen['mission']}.",
                "You see:" if lines else "You see no objects.",
                *(line for _, line in sorted(lines)),
                f"Right in front of you: {front}. Free steps forward: {free}.",
                f"You carry: {carried}.",
            ]
        )


def _name(thing: Any) -> str:
    state = ""
    if thing.type == "door":
        state = "open " if thing.is_open else "locked " if thing.is_locked else "closed "
    return f"{state}{thing.color} {thing.type}"


def _place(ahead: int, right: int) -> str:
    side = f"{abs(right)} to the {'right' if right > 0 else 'left'}"
    return ", ".join([*([f"{ahead} ahead"] if ahead else []), *([side] if right else [])])


@lru_cache(maxsize=1)
def _worlds() -> frozenset[str]:
    library("minigrid", "minigrid")  # registers them
    # It prints whenever a mission that it drew is thrown away, into whatever the program itself writes.
    library("minigrid.envs.babyai.core.roomgrid_level", "minigrid").print = lambda *words: None
    return frozenset(name for name in gymnasium.registry if name.startswith(("MiniGrid-", "BabyAI-")))
