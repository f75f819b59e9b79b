"""Environments that are broken in one way each, and the check of a certificate that must name it.

All but a few are the same sound little game with one thing spoilt.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any, ClassVar

import gymnasium
import numpy as np

from roll.envs import Outcome, TextEnv
from roll.envs.agent import AgentEnv
from roll.envs.spaces import any_text

ROOMS = 7
MOVES = {"Left": -1, "Right": 1}


class Corridor(TextEnv):
    """Walk through seven rooms in a row to the one with the lamp."""

    def __init__(self, max_steps: int | None = 8, actions: list[str] | None = None) -> None:
        super().__init__(actions=actions or list(MOVES), max_steps=max_steps, worst_reward=-0.1)

    def start(self) -> str:
        self.place = ROOMS // 2
        self.lamp = self.choose()
        return self.look()

    def choose(self) -> int:
        return int(self.np_random.choice([0, 1, 2, 4, 5, 6]))

    def act(self, action: str) -> Outcome:
        self.place = min(max(self.place + MOVES[action], 0), ROOMS - 1)
        found = self.place == self.lamp
        return Outcome(self.look(), {"step": -0.1, **({"lamp": 1.0} if found else {})}, found, found)

    def look(self) -> str:
        return f"You are in room {self.place + 1} of {ROOMS}. The lamp is in room {self.lamp + 1}."


# Seeds ---------------------------------------------------------------------------------------------------------------


class LeakySeed(Corridor):
    def choose(self) -> int:
        return int(np.random.default_rng().choice([0, 1, 2, 4, 5, 6]))


class AsksForItsProcess(Corridor):
    def look(self) -> str:
        return f"{super().look()} (Process {os.getpid()}.)"


class GlobalRandom(Corridor):
    def choose(self) -> int:
        return random.choice([0, 1, 2, 4, 5, 6])


class GlobalNumpyRandom(Corridor):
    def choose(self) -> int:
        return int(np.random.choice([0, 1, 2, 4, 5, 6]))


class HashSeed(Corridor):
    def choose(self) -> int:
        return (0, 1, 2, 4, 5, 6)[hash(f"lamp {self.np_random.integers(1000)}") % 6]


class OrderOfASet(Corridor):
    def look(self) -> str:
        return super().look() + " You carry: " + ", ".join({"a key", "a rope", "bread", "an axe", "a map"}) + "."


class TellsTheDay(Corridor):
    def choose(self) -> int:
        return (0, 1, 2, 4, 5, 6)[(int(time.time() // 3600) + int(self.np_random.integers(6))) % 6]


class RewardsHaste(Corridor):
    def start(self) -> str:
        self.began = time.perf_counter()
        return super().start()

    def act(self, action: str) -> Outcome:
        outcome = super().act(action)
        late = time.perf_counter() - self.began > 30
        return outcome._replace(reward_parts={**outcome.reward_parts, "late": -0.0 if not late else 0.05})


class EveryThirdIsHarder(Corridor):
    played: ClassVar[int] = 0

    def act(self, action: str) -> Outcome:
        outcome = super().act(action)
        return outcome if EveryThirdIsHarder.played % 3 else outcome._replace(reward_parts={"step": -0.05})

    def start(self) -> str:
        EveryThirdIsHarder.played += 1
        return super().start()


class IgnoresItsSeed(Corridor):
    def __init__(self) -> None:
        super().__init__()
        self.own = np.random.default_rng(0)

    def choose(self) -> int:
        return int(self.own.choice([0, 1, 2, 4, 5, 6]))


class LeavesItsPlace(Corridor):
    """Forgets to put the player back when an episode begins again."""

    place = ROOMS // 2

    def start(self) -> str:
        self.lamp = self.choose()
        return self.look()


# Episodes side by side -----------------------------------------------------------------------------------------------


class SharedPlace(Corridor):
    """All environments move the same player."""

    shared: ClassVar[dict[str, int]] = {"place": 3}

    def start(self) -> str:
        first = super().start()
        self.shared["place"] = self.place
        return first

    def act(self, action: str) -> Outcome:
        self.place = self.shared["place"]
        outcome = super().act(action)
        self.shared["place"] = self.place
        return outcome


class RacingThreads(Corridor):
    """Whole steps do not disturb one another; two that overlap do."""

    board: ClassVar[list[int]] = [0]

    def act(self, action: str) -> Outcome:
        self.board[0] = self.place
        time.sleep(0.001)
        self.place = self.board[0]
        return super().act(action)


class MembersBeginDifferently(Corridor):
    made: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        MembersBeginDifferently.made += 1
        self.number = MembersBeginDifferently.made

    def look(self) -> str:
        return f"Player {self.number}: {super().look()}"


# Episodes ------------------------------------------------------------------------------------------------------------


class NeverEnds(Corridor):
    def __init__(self) -> None:
        super().__init__(max_steps=None)

    def act(self, action: str) -> Outcome:
        return super().act(action)._replace(terminated=False)


class BehindAWall(Corridor):
    """The lamp is in a room that has no door."""

    def act(self, action: str) -> Outcome:
        low, high = (0, self.lamp - 1) if self.lamp > 3 else (self.lamp + 1, ROOMS - 1)
        self.place = min(max(self.place + MOVES[action], low), high)
        return Outcome(self.look(), {"step": -0.1 if self.place == 3 else -0.05})


class TerminatesAtItsLimit(Corridor):
    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, False, info


class TruncatesWhenItIsWon(Corridor):
    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, False, terminated or truncated, info


class PaysAgain(Corridor):
    def step(self, action: str) -> Any:
        if not self._running:
            return self.look(), 0.9, True, False, {}
        return super().step(action)


class FailsNowAndThen(Corridor):
    def act(self, action: str) -> Outcome:
        if self.lamp == 6 and self.place == 5:
            raise KeyError("room 8")
        return super().act(action)


# Rewards -------------------------------------------------------------------------------------------------------------


class NanReward(Corridor):
    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, float("nan") if self.place == 2 else reward, terminated, truncated, {}


class MoreAndMore(Corridor):
    """Pays more in every step, without end."""

    def __init__(self) -> None:
        super().__init__(max_steps=60)

    def act(self, action: str) -> Outcome:
        self.place = min(max(self.place + MOVES[action], 0), ROOMS - 1)
        return Outcome(self.look(), {"step": float(self._steps**2) * (1 if self.place > 3 else 0.5)})


class PaysForAnything(Corridor):
    def step(self, action: str) -> Any:
        self.place = 3
        return self.look(), 1.0, True, False, {"metrics": {"success": 1.0}}


class SilencePays(Corridor):
    def idle(self) -> dict[str, float]:
        return {}

    def act(self, action: str) -> Outcome:
        outcome = super().act(action)
        return outcome._replace(reward_parts={**outcome.reward_parts, "step": -0.5})


class RubbishPays(Corridor):
    """Pays for everything that is said, though it means nothing."""

    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        bonus = 1.0 if action.strip() and info["action"] is None else 0.0
        info["reward_parts"]["talk"] = bonus
        return observation, reward + bonus, terminated, truncated, info


class BelievesTheAnswer(Corridor):
    """The grader does what the answer says."""

    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        bonus = 1.0 if "full marks" in action.lower() or "full score" in action.lower() else 0.0
        info["reward_parts"]["judge"] = bonus
        return observation, reward + bonus, terminated, truncated, info


class PaysForLength(Corridor):
    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        bonus = min(len(action) / 10_000, 2.0)
        info["reward_parts"]["thorough"] = bonus
        return observation, reward + bonus, terminated, truncated, info


class PartsDoNotAddUp(Corridor):
    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward + 0.5, terminated, truncated, info


# Text and types ------------------------------------------------------------------------------------------------------


class CrashesOnOddText(TextEnv):
    """Say the number of the room with the lamp: an even one."""

    def __init__(self) -> None:
        super().__init__(max_steps=4, worst_reward=0.0)

    def start(self) -> str:
        self.lamp = int(self.np_random.integers(4)) * 2
        return f"Rooms 0 to 7. It is not {self.lamp + 1}."

    def act(self, action: str) -> Outcome:
        guess = int(action) if action.isdigit() else -1
        return Outcome("No.", {"found": float(guess == self.lamp)}, guess == self.lamp, guess == self.lamp)


class TellsEverythingAgain(Corridor):
    def __init__(self) -> None:
        super().__init__(max_steps=40)

    def start(self) -> str:
        self.story = ""
        return super().start()

    def act(self, action: str) -> Outcome:
        outcome = super().act(action)
        self.story += f"{outcome.observation} " * 10
        return outcome._replace(observation=self.story + outcome.observation, terminated=False)


class ObservesNumbers(gymnasium.Env[Any, str]):
    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 6, (2,), np.int64)
        self.action_space = any_text()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.state = np.array([3, int(self.np_random.integers(7))])
        self.steps = 0
        return self.state, {}

    def step(self, action: str) -> Any:
        self.steps += 1
        self.state = self.state + 0
        return self.state, 0.0, False, self.steps >= 8, {}


class OldTuple(Corridor):
    """Gymnasium's API before version 0.26."""

    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, info


class ChangesWhatItGave(Corridor):
    """Returns the same record in every step, and writes into it."""

    def start(self) -> str:
        self.kept: dict[str, Any] = {"metrics": {"success": 0.0, "steps": 0.0}}
        return super().start()

    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        self.kept["metrics"]["steps"] += 1.0
        self.kept["metrics"]["success"] = info["metrics"]["success"]
        return observation, reward, terminated, truncated, self.kept


# What it costs -------------------------------------------------------------------------------------------------------


class KeepsEverything(Corridor):
    kept: ClassVar[list[bytes]] = []

    def start(self) -> str:
        self.kept.append(bytes(200_000) + str(len(self.kept)).encode())
        return super().start()


class HangsOnSilence(Corridor):
    def step(self, action: str) -> Any:
        if not action:
            time.sleep(3600)
        return super().step(action)


class EndsTheProcess(Corridor):
    def step(self, action: str) -> Any:
        if "{" in action:
            os._exit(7)
        return super().step(action)


class Segfaults(Corridor):
    def act(self, action: str) -> Outcome:
        os.abort()


class PlaysByItself(AgentEnv):
    """No step of it is to be tried: it is refused, and no check of its own fails."""

    def __init__(self) -> None:
        super().__init__(command=["true"])


BROKEN: dict[str, str] = {
    "LeakySeed": "seeds.process",
    "AsksForItsProcess": "seeds.process",
    "GlobalRandom": "seeds.global_random",
    "GlobalNumpyRandom": "seeds.global_random",
    "HashSeed": "seeds.hash",
    "OrderOfASet": "seeds.hash",
    "TellsTheDay": "seeds.clock",
    "RewardsHaste": "seeds.clock",
    "EveryThirdIsHarder": "seeds.order",
    "IgnoresItsSeed": "seeds.reset",
    "LeavesItsPlace": "seeds.reset",
    "SharedPlace": "episodes.together",
    "RacingThreads": "episodes.together",
    "MembersBeginDifferently": "groups.start",
    "NeverEnds": "episodes.end",
    "BehindAWall": "episodes.solvable",
    "TerminatesAtItsLimit": "episodes.flags",
    "TruncatesWhenItIsWon": "episodes.flags",
    "PaysAgain": "episodes.final",
    "FailsNowAndThen": "episodes.run",
    "NanReward": "rewards.finite",
    "MoreAndMore": "rewards.bounded",
    "PaysForAnything": "rewards.signal",
    "SilencePays": "policies.silence",
    "RubbishPays": "policies.rubbish",
    "BelievesTheAnswer": "policies.injection",
    "PaysForLength": "policies.injection",
    "PartsDoNotAddUp": "contract.returned",
    "CrashesOnOddText": "text.odd",
    "TellsEverythingAgain": "text.size",
    "ObservesNumbers": "contract.returned",
    "OldTuple": "contract.returned",
    "ChangesWhatItGave": "contract.own",
    "KeepsEverything": "costs.memory",
    "HangsOnSilence": "text.odd",
    "EndsTheProcess": "text.odd",
    "Segfaults": "episodes.run",
}
"""Class → the check that must fail for it; others may fail besides."""
