"""What running episodes over Ray costs: ``python benchmarks/ray_overhead.py``.

Everything is as in a run with ``cluster: ray`` (environment workers and an engine worker as Ray actors, episodes handed
out by the driver, the toy policy's tokenizer) except two things. The environment returns the same observation every
turn (the first one differs between groups). And **the engine is a fake**: it has a fixed number of slots, as an engine
has ``max_running_requests``, each request holds one for a fixed time, and the answer is a fixed response. So what the
engine takes is known exactly:

    ideal = turns * service time * ceil(environments / slots)

that is, every wave of as many environments as there are slots plays all its turns, and nothing else takes any time.
Environments are concurrent: all episodes are begun at once, and requests beyond the slots wait in the engine.

* ``not engine``: 1 - ideal / wall, where wall is the time of ``play_all`` from the first call to the
  last trajectory in the driver. Target at one wave that fills the slots (512 environments): at most 5 %.
* ``s/episode``: wall / environments. With more environments than slots it should stay as it is at one wave; ``flat`` is
  its ratio to that, target 0.9 to 1.1. With fewer, slots are empty and the figure is larger.
* ``CPU ms/turn``: processor time of all processes (driver, environment workers, the fake engine's, Ray's own) during
  the round per turn of an episode, which depends on the machine and on prompt lengths, not on the service time.

Each row is the best of some rounds; a wave that only warms up comes first. All processes share one priority (Ray would
give its workers a lower one). Prints a table; always exits with 0.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from roll.config.process import prepare_process, settle_collector

prepare_process({"OMP_NUM_THREADS": "1"})
# Ray's workers are nicer than other processes by 15 unless told otherwise, so anything else would be measured too.
os.environ.setdefault("RAY_worker_niceness", "0")

import psutil  # noqa: E402
from ratios import leave  # noqa: E402

from roll.config import AgenticConfig  # noqa: E402
from roll.distributed import WorkerGroup, WorkerSpec, open_cluster  # noqa: E402
from roll.envs import TextEnv, register_env, register_tag  # noqa: E402
from roll.envs.base import Outcome  # noqa: E402
from roll.generation import Completion, GenerationRequest  # noqa: E402
from roll.models.loading import load_tokenizer  # noqa: E402
from roll.pipelines.roles.pool import WorkerPool  # noqa: E402
from roll.schedulers.group_stream import play_all  # noqa: E402
from roll.schedulers.groups import GroupPlayer  # noqa: E402
from roll.schedulers.levels import LevelPlay, level_tasks  # noqa: E402
from roll.workers.engine_client import Engines  # noqa: E402
from roll.workers.environment import EnvironmentWorker  # noqa: E402
from roll.workers.setup import Registered  # noqa: E402

GROUP = 8
OVERHEAD_TARGET = 0.05
FLAT_TARGET = 0.1
OBSERVATION = "The corridor goes on to the north and to the south. A lamp is lit above a closed door."
RESPONSE = "I try the door first, because the lamp above it is the only thing here that is lit. <answer>open</answer>"


@register_env("still_room")
class StillRoom(TextEnv):
    """A room in which nothing ever happens."""

    def start(self) -> str:
        """Return the observation; that of another group is another one."""
        return f"{OBSERVATION} The door has the number {self.np_random.integers(1 << 30)}."

    def act(self, action: str) -> Outcome:
        """Return the same observation again."""
        return Outcome(OBSERVATION, {"time": -0.01})


class FakeEngineWorker:
    """**Not an engine**: answers every request after a fixed time with the same tokens, so many at a time.

    Args:
        slots: Requests at a time; others wait in order of arrival.
        seconds: How long each of them takes.
        response: Tokens of every completion.
    """

    def __init__(self, slots: int, seconds: float, response: list[int]) -> None:
        self._slots = asyncio.Semaphore(slots)
        self._seconds = seconds
        self._response = response
        self._log_probs = [-0.123456789] * len(response)

    async def generate(self, request: GenerationRequest) -> Completion:
        """Return the fixed response."""
        async with self._slots:
            await asyncio.sleep(self._seconds)
        return Completion(list(self._response), list(self._log_probs), "stop", (1, 1), len(request.prompt_ids))

    async def abort(self, request_id: str) -> None:
        """Nothing ends early."""

    async def release(self, session: str) -> None:
        """Nothing is kept."""


@dataclass(frozen=True)
class Load:
    """What is played.

    Attributes:
        environments: Episodes at the same time.
        workers: Processes that they are spread over.
        slots: Requests that the fake engine serves at a time.
        turns: Of each episode.
        seconds: That a turn takes in the fake engine.
    """

    environments: int
    workers: int
    slots: int
    turns: int
    seconds: float

    @property
    def ideal(self) -> float:
        """Seconds of a round in which only the engine takes time."""
        return self.turns * self.seconds * math.ceil(self.environments / self.slots)

    def config(self, folder: str) -> AgenticConfig:
        """Return the run."""
        per_worker = math.ceil(self.environments / self.workers)
        return AgenticConfig.model_validate(
            {
                "cluster": "ray",
                "pretrain": "toy",
                "output_dir": folder,
                "sequence_length": 8192,
                "max_tokens_per_step": 128,
                "agent_system_template": "Find the way out.",
                "agent_template": "{observation}",
                "rollout_batch_size": self.environments,
                "max_running_requests": self.slots,
                "train_env_manager": {
                    "env_groups": self.environments // GROUP,
                    "group_size": GROUP,
                    "tags": ["StillRoom"],
                    "max_env_num_per_worker": per_worker,
                },
                "eval_steps": 0,
                "system_envs": {"OMP_NUM_THREADS": "1"},
                "rpc_timeout": 600,
            }
        )


@dataclass(frozen=True)
class Round:
    """What a round took.

    Attributes:
        wall: Seconds.
        cpu: Processor seconds by who used them.
    """

    wall: float
    cpu: Mapping[str, float]


class ProcessorTimes:
    """Processor time of everything that takes part, by part.

    Args:
        groups: The workers, by what the table calls them.
    """

    def __init__(self, groups: Mapping[str, WorkerGroup]) -> None:
        self._parts: dict[int, str] = {}
        for name, group in groups.items():
            self._parts.update((_pid(group, rank), name) for rank in range(group.size))

    def now(self) -> dict[str, float]:
        """Return seconds since the start of each process."""
        driver = psutil.Process()
        sums = dict.fromkeys(("driver", "environments", "engine", "ray"), 0.0)
        for process in (driver, *driver.children(recursive=True)):
            part = "driver" if process is driver else self._parts.get(process.pid, "ray")
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            sums[part] += times.user + times.system
        return sums


def _pid(group: WorkerGroup, rank: int) -> int:
    """Return the process of a worker, from how messages name it."""
    found = re.search(r"pid (\d+)", group.describe(rank))  # type: ignore[attr-defined]
    if found is None:
        raise RuntimeError(f"{group.role} {rank} has no process")
    return int(found[1])


def response_ids() -> list[int]:
    """Return the tokens of every completion."""
    tokenizer = load_tokenizer("toy")
    return [*tokenizer.encode(RESPONSE, add_special_tokens=False), tokenizer.eos_token_id]


async def play(load: Load, rounds: int) -> list[Round]:
    """Start everything, play a round to warm up, and measure the next ones."""
    config = load.config(tempfile.gettempdir())
    settle_collector()  # as a run does
    async with open_cluster(config) as cluster:
        arguments: tuple[Any, ...] = (load.slots, load.seconds, response_ids())
        engines = await cluster.start("actor_infer", WorkerSpec(cls=FakeEngineWorker, args=arguments))
        arguments = (config, "train_env_manager", Registered.here(), Engines(engines.calls()))
        workers = await cluster.start(
            "train_env_manager",
            WorkerSpec(cls=EnvironmentWorker, args=arguments),
        )
        pool = WorkerPool(workers)
        times = ProcessorTimes({"engine": engines, "environments": workers})

        async def episode(spec: Any, greedy: bool) -> Any:
            return await pool.call("play", spec, greedy)

        player = GroupPlayer(LevelPlay(episode, 0))
        results = []
        for number in range(rounds + 1):
            environments = load.environments if number else min(load.environments, load.slots)
            specs = level_tasks([("StillRoom", environments // GROUP)], GROUP, 0, f"{number}-")
            before, began = times.now(), time.perf_counter()
            groups = await play_all(specs, player.play_group)
            wall, after = time.perf_counter() - began, times.now()
            for trajectory in (trajectory for group in groups for trajectory in group.trajectories):
                if len(trajectory.turns) != load.turns:
                    raise RuntimeError(f"{trajectory.group_id}: {trajectory.status}, {trajectory.error}")
            if number:
                results.append(Round(wall, {part: after[part] - before[part] for part in after}))
        return results


def table(loads: list[Load], rounds: int) -> Iterator[str]:
    """Measure; yield the lines to print."""
    yield (
        f"{'environments':>12}{'wall s':>9}{'ideal s':>9}{'episodes/s':>12}{'not engine':>12}{'s/episode':>11}"
        f"{'flat':>7}   CPU ms/turn: all (driver, environments, engine, Ray)"
    )
    full: float | None = None
    for load in loads:
        results = asyncio.run(play(load, rounds))
        leave(
            f"ray_overhead: {load.environments} episodes, {load.seconds:g} s a turn, against the engine alone",
            [load.ideal / result.wall for result in results],
        )
        best = min(results, key=lambda each: each.wall)
        each = best.wall / load.environments
        if load.environments == load.slots:
            full = each
        overhead = 1 - load.ideal / best.wall
        verdicts = []
        if load.environments == load.slots:
            verdicts.append("PASS" if overhead <= OVERHEAD_TARGET else "FAIL")
        ratio = None if full is None else each / full
        if ratio is not None and load.environments > load.slots:
            verdicts.append("PASS" if abs(ratio - 1) <= FLAT_TARGET else "FAIL")
        turns = load.environments * load.turns
        cpu = {part: 1000 * seconds / turns for part, seconds in best.cpu.items()}
        walls = ", ".join(f"{result.wall:.2f}" for result in results)
        yield (
            f"{load.environments:>12}{best.wall:>9.2f}{load.ideal:>9.2f}{load.environments / best.wall:>12.1f}"
            f"{overhead:>12.1%}{each:>11.4f}{'' if ratio is None else f'{ratio:.2f}':>7}"
            f"   {sum(cpu.values()):.2f} ({', '.join(f'{value:.2f}' for value in cpu.values())})"
            f"   {' '.join(verdicts)} (rounds: {walls} s)"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=int, nargs="+", default=[64, 512, 4096], help="multiples of 8")
    parser.add_argument("--workers", type=int, default=2, help="environment workers")
    parser.add_argument("--slots", type=int, default=512, help="requests at a time in the engine")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument(
        "--seconds",
        type=float,
        default=2.0,
        help="service time of a turn; 2 s is 53 tokens from an engine that gives each of 512 sequences 27 a second",
    )
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    loads = [
        Load(environments, arguments.workers, arguments.slots, arguments.turns, arguments.seconds)
        for environments in sorted(arguments.environments)
    ]
    register_tag("StillRoom", env_type="still_room", max_steps=arguments.turns)
    print(
        f"Fake engine: {arguments.slots} slots, {arguments.seconds:g} s per turn. {arguments.turns} turns per episode, "
        f"{len(response_ids())} tokens per response, {arguments.workers} environment workers. Load of the machine "
        f"before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors."
    )
    for line in table(loads, arguments.rounds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
