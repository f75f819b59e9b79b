"""Environments with nothing wrong, nearly all written by others; some wrapped so that they speak text."""

from __future__ import annotations

import asyncio
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from roll.envs import AsyncTextEnv, Outcome, Tag, TextEnv, make
from roll.envs.adapters.gymnasium_text import GymnasiumTextEnv
from roll.envs.adapters.open_adventure import OpenAdventureEnv
from roll.envs.adapters.pettingzoo_games import PettingZooEnv
from roll.envs.adapters.reasoning_gym import ReasoningGymEnv
from roll.envs.adapters.textarena_games import TextArenaEnv
from roll.envs.errors import MissingDependencyError
from tests.envs.builtin_tags import BUILTIN_TAGS

ROOT = Path(__file__).resolve().parents[2]


def frozen_lake() -> TextEnv:
    return GymnasiumTextEnv("FrozenLake-v1", {"is_slippery": False}, max_steps=30)


def slippery_lake() -> TextEnv:
    return GymnasiumTextEnv("FrozenLake-v1", {"is_slippery": True}, max_steps=60)


def large_lake() -> TextEnv:
    return GymnasiumTextEnv("FrozenLake8x8-v1", {"is_slippery": True})


def natural_blackjack() -> TextEnv:
    return GymnasiumTextEnv("Blackjack-v1", {"natural": True, "sab": False}, max_steps=10)


def spell_backward() -> TextEnv:
    return ReasoningGymEnv("spell_backward", size=50)


def greatest_common_divisor() -> TextEnv:
    return ReasoningGymEnv("gcd", size=50)


def leg_counting() -> TextEnv:
    return ReasoningGymEnv("leg_counting", size=50)


def number_sorting() -> TextEnv:
    return ReasoningGymEnv("number_sorting", size=50, max_steps=3)


def arena_lake() -> TextEnv:
    return TextArenaEnv("FrozenLake-v0", actions=["[up]", "[down]", "[left]", "[right]"], max_steps=20)


def connect_four() -> TextEnv:
    return PettingZooEnv("connect_four_v3", max_steps=21)


def short_cave() -> TextEnv:
    return OpenAdventureEnv(max_steps=10)


def two_houses() -> TextEnv:
    return make("TextWorldHouse", games=2, max_steps=8)


def function_calls() -> TextEnv:
    return make(Tag("function_calls", "bfcl", max_steps=20))


def mock_tasks() -> TextEnv:
    return make(Tag("mock_tasks", "tau2", {"domain": "mock", "tasks": "base"}, max_steps=10))


def airline() -> TextEnv:
    """Return the one that is not fit."""
    return make(Tag("airline", "tau2", max_steps=10))


def airline_without_refusals() -> TextEnv:
    return make(Tag("airline_without_refusals", "tau2", {"refusals": False}, max_steps=10))


def missing(name: str) -> str | None:
    """Return what one of these needs and this machine has not; CI has all of it."""
    module = {"two_houses": "textworld", "function_calls": "bfcl_eval", "mock_tasks": "tau2"}
    module["airline_without_refusals"] = "tau2"
    needed = module.get(name.removeprefix("sound_envs:"))
    if needed is not None and find_spec(needed) is None:
        return needed
    if name == "sound_envs:short_cave":
        try:
            short_cave()
        except MissingDependencyError as error:
            return str(error)
    return None


@cache
def _of_the_page() -> type[TextEnv]:
    """Return the environment of the page on environments, as a reader would paste it."""
    page = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
    program = next(text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class GuessNumber" in text)
    names: dict[str, Any] = {"__name__": "of_the_page"}
    exec(compile(program, "docs/environments.md", "exec"), names)
    found: type[TextEnv] = names["GuessNumber"]
    return found


def guess_number() -> TextEnv:
    return _of_the_page()()


class Waits(AsyncTextEnv):
    """Ask a slow server for the way: Left or Right."""

    def __init__(self) -> None:
        super().__init__(actions=["Left", "Right"], max_steps=4)

    async def start(self) -> str:
        await asyncio.sleep(0.001)
        self.way = str(self.np_random.choice(["Left", "Right"]))
        return f"The way is {self.way}."

    async def act(self, action: str) -> Outcome:
        await asyncio.sleep(0.001)
        return Outcome("Go on.", {"way": float(action == self.way)}, action == self.way, action == self.way)


class RoomForTen(GymnasiumTextEnv):
    """Cross the frozen lake, on a server that has room for ten: who does not close finds none."""

    _open: ClassVar[set[int]] = set()

    def __init__(self) -> None:
        super().__init__("FrozenLake-v1", {"is_slippery": False}, max_steps=30)

    def start(self) -> str:
        self._open.add(id(self))
        if len(self._open) > 10:
            raise RuntimeError("the server is full")
        return super().start()

    def close(self) -> None:
        self._open.discard(id(self))
        super().close()


SOUND = (
    # The cave starts its program for each command, and a house takes seconds to make: fewer of them are below.
    *(tag for tag in BUILTIN_TAGS if tag not in ("ColossalCave", "TextWorldHouse")),
    "examples.custom_env:TreasureHunt",
    "examples.minesweeper:Minesweeper",
    *(
        f"sound_envs:{made.__name__}"
        for made in (
            frozen_lake,
            slippery_lake,
            large_lake,
            natural_blackjack,
            spell_backward,
            greatest_common_divisor,
            leg_counting,
            number_sorting,
            arena_lake,
            connect_four,
            short_cave,
            two_houses,
            function_calls,
            mock_tasks,
            airline_without_refusals,
            guess_number,
            Waits,
            RoomForTen,
        )
    ),
)
"""All of them must be found fit."""
