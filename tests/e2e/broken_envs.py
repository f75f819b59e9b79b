"""Named in ``env_modules``: environments that raise, hang, return rubbish, answer late, or give everybody the same."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from roll.envs import AsyncTextEnv, Outcome, TextEnv, register_env

ACTIONS = ["Up", "Down", "Left", "Right"]


class Walk(TextEnv):
    """Right is rewarded, which is all there is to it."""

    def __init__(self, max_steps: int = 2) -> None:
        super().__init__(actions=ACTIONS, max_steps=max_steps, worst_reward=0.0)

    def start(self) -> str:
        self.lucky = str(self.np_random.choice(ACTIONS))
        return f"Today {self.lucky} is good."

    def act(self, action: str) -> Outcome:
        return Outcome("And now?", {"luck": float(action == self.lucky)})


@register_env("steady", max_steps=2)
class Steady(Walk):
    pass


@register_env("raises", max_steps=2)
class Raises(Walk):
    def act(self, action: str) -> Outcome:
        raise RuntimeError("the server of this game is down")


@register_env("hangs", max_steps=2)
class Hangs(Walk):
    def act(self, action: str) -> Outcome:
        time.sleep(60)
        return super().act(action)


@register_env("shaky", max_steps=2)
class Shaky(Walk):
    """Its server is gone at a share of the steps, which depends on no seed."""

    chance = 0.0

    def act(self, action: str) -> Outcome:
        if random.SystemRandom().random() < self.chance:
            raise ConnectionResetError("the server of this game was restarted")
        return super().act(action)


@register_env("rubbish", max_steps=2)
class Rubbish(Walk):
    def step(self, response: str) -> Any:
        return "what", float("nan")


@register_env("late", max_steps=2)
class Late(Walk):
    """Takes a time that depends on no seed, so that episodes finish in another order every time."""

    def act(self, action: str) -> Outcome:
        time.sleep(random.SystemRandom().random() * 0.05)
        return super().act(action)


@register_env("indifferent", max_steps=2)
class Indifferent(Walk):
    def step(self, response: str) -> Any:
        observation, _, terminated, truncated, info = super().step(response)
        return observation, 0.0, terminated, truncated, {"metrics": info["metrics"]}


@register_env("picky", max_steps=2)
class Picky(Walk):
    def __init__(self, max_steps: int = 2, colour: str = "red") -> None:
        if colour != "red":
            raise ValueError(f"no {colour} paint")
        super().__init__(max_steps)


@register_env("taxed", max_steps=2)
class Taxed(Walk):
    """Every move costs, and nothing is ever found; silence costs what it costs by default."""

    def __init__(self, max_steps: int = 2) -> None:
        super().__init__(max_steps)
        self.worst_reward = -1.0

    def act(self, action: str) -> Outcome:
        return Outcome("Nothing.", {"tax": -0.5})


@register_env("taxed_but_free_when_silent", max_steps=2)
class TaxedButFreeWhenSilent(Taxed):
    def idle(self) -> dict[str, float]:
        return {}


@register_env("awaits", max_steps=2)
class Awaits(AsyncTextEnv):
    """Right is rewarded, by a server that takes its time."""

    def __init__(self, max_steps: int = 2) -> None:
        super().__init__(actions=ACTIONS, max_steps=max_steps)

    async def start(self) -> str:
        await asyncio.sleep(0.01)
        return "Today Right is good."

    async def act(self, action: str) -> Outcome:
        await asyncio.sleep(0.01)
        return Outcome("And now?", {"luck": float(action == "Right")})


@register_env("dawdles", max_steps=2)
class Dawdles(Awaits):
    """In some levels its server does not answer, for as long as anybody waits."""

    in_use = 0
    """Environments that are made and not yet closed."""

    def __init__(self, max_steps: int = 2) -> None:
        super().__init__(max_steps)
        Dawdles.in_use += 1

    async def start(self) -> str:
        if self.np_random.random() < 0.3:
            await asyncio.Event().wait()
        return await super().start()

    async def close(self) -> None:
        Dawdles.in_use -= 1
