"""How long thousands of waiting episodes take in one worker, against the ideal in which nobody waits for anybody.

    python benchmarks/waiting_envs.py [awaits] [blocks] [--episodes 4096] [--turns 3] [--seconds 2]

Every turn of an episode waits for ``--seconds``, as for a network or a sandbox. ``awaits``: an ``AsyncTextEnv``, in the
event loop. ``blocks``: ``time.sleep``, in threads. The engine answers at once, so the ideal is turns times seconds. The
peer is what Python programs use for blocking calls in an event loop, ``asyncio.to_thread`` with its own default of
threads; it is computed, not waited for.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import time
from typing import Any

from roll.common.threads import CallThreads
from roll.env_managers import EnvManagerLimits, EpisodeSpec, TrajectoryEnvManager
from roll.env_managers.event_loop import EnvEventLoop
from roll.envs import AsyncTextEnv, Outcome, TextEnv
from roll.generation import Completion, GenerationRequest
from roll.models.loading import load_tokenizer
from roll.rendering import ChatRenderer

TARGET = 1.5


class Blocks(TextEnv):
    """Waits in a thread."""

    def __init__(self, seconds: float, turns: int) -> None:
        super().__init__(actions=["Wait"], max_steps=turns)
        self.seconds = seconds

    def start(self) -> str:
        """Begin."""
        return "Wait."

    def act(self, action: str) -> Outcome:
        """Wait."""
        time.sleep(self.seconds)
        return Outcome("Wait again.", {"waited": 0.0})


class Awaits(AsyncTextEnv):
    """Waits in the event loop."""

    def __init__(self, seconds: float, turns: int) -> None:
        super().__init__(actions=["Wait"], max_steps=turns)
        self.seconds = seconds

    async def start(self) -> str:
        """Begin."""
        return "Wait."

    async def act(self, action: str) -> Outcome:
        """Wait."""
        await asyncio.sleep(self.seconds)
        return Outcome("Wait again.", {"waited": 0.0})


async def play(kind: type[TextEnv], episodes: int, turns: int, seconds: float) -> float:
    """Return the seconds that all episodes took together."""
    tokenizer = load_tokenizer("toy")
    ids = [*tokenizer.encode("<answer>Wait</answer>", add_special_tokens=False), tokenizer.eos_token_id]
    answer = Completion(ids, [0.0] * len(ids), "stop", (0, 0))

    async def generate(request: GenerationRequest) -> Any:
        return answer

    where = EnvEventLoop() if kind is Awaits else CallThreads()
    manager = TrajectoryEnvManager(
        renderer=ChatRenderer(tokenizer),
        generate=generate,
        limits=EnvManagerLimits(max_steps=turns, sequence_length=4096, max_new_tokens=16),
        threads=where,
    )
    began = time.perf_counter()
    specs = [EpisodeSpec("wait", str(number), 0, number, run_seed=0) for number in range(episodes)]
    played = await asyncio.gather(*(manager.run(spec, lambda: kind(seconds, turns)) for spec in specs))
    took = time.perf_counter() - began
    where.close()
    if any(len(trajectory.turns) != turns for trajectory in played):
        raise RuntimeError(f"an episode broke: {next(t.error for t in played if t.error)}")
    return took


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=["awaits", "blocks"])
    parser.add_argument("--episodes", type=int, default=4096)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    ideal = arguments.turns * arguments.seconds
    default_threads = min(32, (os.cpu_count() or 1) + 4)
    peer = math.ceil(arguments.episodes / default_threads) * ideal
    print(
        f"{arguments.episodes} episodes of {arguments.turns} turns that wait {arguments.seconds:g} s: ideal {ideal:g} s"
    )
    print(f"{'':8}{'seconds':>9}{'of ideal':>10}{'to_thread, computed':>21}")
    passed = True
    for kind in arguments.kinds:
        env = {"awaits": Awaits, "blocks": Blocks}[kind]
        took = asyncio.run(play(env, arguments.episodes, arguments.turns, arguments.seconds))
        good = took <= TARGET * ideal
        passed &= good
        print(
            f"{kind:8}{took:>9.2f}{took / ideal:>10.2f}{peer:>20.0f} s  (wanted {TARGET}) {'PASS' if good else 'FAIL'}"
        )
    raise SystemExit(0 if passed else 1)


if __name__ == "__main__":
    main()
