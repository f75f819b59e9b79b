"""A scripted engine, a readable token scheme and small environments, good and bad."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from roll.env_managers import EnvManagerLimits, EpisodeSpec, TrajectoryEnvManager
from roll.generation import Activity as EngineActivity
from roll.generation import Completion, GenerationRequest
from roll.trajectories.model import Trajectory

STOP = 3


class CharacterRenderer:
    """One token per character; control tokens below 10. ``forks`` says which replies need a new rendering."""

    stop_token_ids = (STOP,)
    text_only = False

    def __init__(self, forks: Callable[[str], bool] = lambda reply: False) -> None:
        self.forks = forks

    def render_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        ids: list[int] = []
        for message in messages:
            ids += [1, *map(ord, message["role"][0] + message["content"]), STOP]
        return [*ids, 1]

    def next_ids(
        self,
        completion_ids: Sequence[int],
        new_messages: Sequence[Mapping[str, str]],
        history: Sequence[Mapping[str, str]] | None = None,
    ) -> list[int] | None:
        if self.forks(self.decode(completion_ids)):
            return None
        return ([] if completion_ids[-1] == STOP else [STOP]) + self.render_ids(new_messages)

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(i) for i in ids if i != STOP)


def says(text: str, finish_reason: str = "stop") -> Completion:
    ids = [*map(ord, text), STOP]
    return Completion(ids, [-0.5] * len(ids), finish_reason, (7, 8))


def turn_of(request: GenerationRequest) -> int:
    """Index of the turn that a request of an env manager is for."""
    return int(request.request_id.rsplit("/", 1)[1])


def script(*replies: str) -> tuple[Callable[[GenerationRequest], Awaitable[Completion]], list[GenerationRequest]]:
    """An engine that answers turn k with reply k (the last one for ever), and the calls it got."""
    calls: list[GenerationRequest] = []

    async def generate(call: GenerationRequest) -> Completion:
        calls.append(call)
        await asyncio.sleep(0)
        return says(replies[min(turn_of(call), len(replies) - 1)])

    return generate, calls


class CountEnv:
    """Counts to ``goal``; what it returns can be bent by overriding."""

    render_mode: str | None = "ansi"
    instruction = "Count with {braces}."

    def __init__(self, goal: int = 3) -> None:
        self.goal = goal
        self.count = 0
        self.closed = 0
        self.threads: set[str] = set()

    def reset(self, *, seed: int | None = None) -> Any:
        self.count = 0
        return f"seed {seed}: 0 {{x}}", {}

    def step(self, response: str) -> Any:
        self.threads.add(threading.current_thread().name)
        self.count += 1
        success = float(self.count == self.goal)
        info = {
            "action": response.upper() if response else None,
            "reward_parts": {"env": -0.1, "goal": success},
            "metrics": {"success": success, "count": float(self.count), "mean_count": float(self.count)},
            "metrics_agg": {"success": "last", "count": "max"},
        }
        return f"at {self.count}", -0.1 + success, self.count == self.goal, False, info

    def render(self) -> Any:
        return f"frame {self.count}"

    def close(self) -> None:
        self.closed += 1


class Activity(EngineActivity):
    """Remembers how it stood at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[int] = []

    def enter_env(self) -> None:
        super().enter_env()
        self.log.append(self.outside)

    def leave_env(self) -> None:
        super().leave_env()
        self.log.append(self.outside)


def spec(group: str = "g", episode: int = 0, seed: int = 11) -> EpisodeSpec:
    return EpisodeSpec("Count", group, episode, seed, run_seed=5)


def manager(generate: Any, **options: Any) -> TrajectoryEnvManager:
    options.setdefault("renderer", CharacterRenderer())
    options.setdefault("limits", EnvManagerLimits(max_steps=5, sequence_length=1000, max_new_tokens=20))
    return TrajectoryEnvManager(generate=generate, **options)


def play(env: Any, *replies: str, **options: Any) -> Trajectory:
    """Run one episode of ``env`` against scripted replies."""
    generate, _ = script(*(replies or ("up",)))
    return asyncio.run(manager(generate, **options).run(spec(), lambda: env))
