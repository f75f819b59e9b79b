"""Which part saturates first as a job grows: the real schedulers and store in simulated time, 8 to 4,096 engines.

    python benchmarks/scale.py [--engines 8 64 512 4096] [--episodes 256] [--curve docs/images/scale.png]

What runs is the real ``GenerationScheduler``, ``GroupPlayer``, ``GroupStream`` and ``FolderStore``, in an event loop
whose clock jumps to the next event. Engines and environments only wait: a turn takes ``ENGINE_SECONDS`` of an engine
and ``ENV_SECONDS`` elsewhere in the mean, with long tails. Each engine has ``--episodes`` episodes under way. Each part
is run by itself with the load of the whole job, and its processor time is what is measured: that of the same waiting
without it is taken off.

* ``scheduler``: one ``GenerationScheduler`` places every turn of the job. A run on Ray has one in each environment
  worker, and each sees all engines.
* ``stream``: the driver begins, books and hands out every group (:class:`GroupStream`), two steps of all that is under
  way.
* ``store``: groups are appended and leased through a folder.

A turn also makes trips between processes, of 1.2 ms of processor time on all sides together with real Ray
(``ray_overhead.py``, its table); they are counted to the environment workers. So the number of **workers** is how many
cores place turns and carry them, and ``driver`` the share of one core that the stream and the store take. What is above
100 % cannot be done by one driver. ``--curve`` draws the cores that each part needs, over the engines.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import tempfile
import time
import zlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from virtual_time import run_in_virtual_time

from roll.env_managers.records import EpisodeSpec
from roll.experience.folder import FolderStore
from roll.generation import Completion, GenerationRequest, SamplingParams
from roll.schedulers.generation import GenerationScheduler
from roll.schedulers.group_stream import GroupStream
from roll.schedulers.groups import GroupPlayer
from roll.schedulers.levels import LevelPlay, level_sources
from roll.schedulers.source_share import GroupSource
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup, Turn

ENGINE_SECONDS, ENV_SECONDS, SIGMA = 4.0, 1.0, 1.0
TURNS = 8
"""Turns of an episode; ``scheduler`` plays the first ``PLAYED`` of them, whose cost is that of the others."""
PLAYED = 3
TRIP_SECONDS = 0.0012
GROUP_SIZE = 8
TOKENS = 200

_DRAWS = [random.Random(0).lognormvariate(-(SIGMA**2) / 2, SIGMA) for _ in range(1 << 16)]
"""Factors of waiting times, with a mean of 1."""
_PROMPT, _RESPONSE, _LOGPROBS = [0] * 8, [0] * TOKENS, [0.0] * TOKENS
_SAMPLING = SamplingParams(max_new_tokens=TOKENS, stop_token_ids=(1,))


class WaitingEngine:
    """**Not an engine**: waits as long as one takes, and answers what is always the same."""

    async def generate(self, request: GenerationRequest) -> Completion:
        """Return the answer after a while."""
        await asyncio.sleep(ENGINE_SECONDS * _draw(request.seed))
        return Completion(_RESPONSE, _LOGPROBS, "stop", (0, 0))

    async def abort(self, request_id: str) -> None:
        """Nothing is aborted here."""

    async def release(self, session: str) -> None:
        """Nothing is kept."""


def _draw(number: int) -> float:
    return _DRAWS[number * 7919 & 0xFFFF]


async def _play_turns(engines: int, episodes: int, placed: bool) -> None:
    """Play the first turns of all episodes, through a scheduler or straight at the engines, begun over a second."""
    replicas = [WaitingEngine() for _ in range(engines)]
    generation = GenerationScheduler(replicas, max_running_requests=-(-episodes // engines))

    async def play(number: int) -> None:
        await asyncio.sleep(number / episodes)
        name = f"train-{number}"
        straight = replicas[number % engines]
        generate = generation.generate if placed else straight.generate
        for turn in range(PLAYED):
            seed = number * PLAYED + turn
            await generate(GenerationRequest(f"{name}/{turn}", _PROMPT, _SAMPLING, seed, name, priority=number))
            await asyncio.sleep(ENV_SECONDS * _draw(seed + 1))
        await (generation if placed else straight).release(name)

    await asyncio.gather(*(play(number) for number in range(episodes)))


def _trajectory(group: str, episode: int) -> Trajectory:
    turns = [Turn(_PROMPT, _RESPONSE, _LOGPROBS, policy_version=(0, 0)) for _ in range(TURNS)]
    return Trajectory("fake", group, episode, 0, "same", turns, Status.COMPLETED, 1.0)


async def _play_episode(spec: EpisodeSpec, greedy: bool = False) -> Trajectory:
    await asyncio.sleep(TURNS * (ENGINE_SECONDS + ENV_SECONDS) * _draw(zlib.crc32(spec.trajectory_id.encode())))
    return _trajectory(spec.group_id, spec.episode)


async def _stream_groups(groups: int, streamed: bool) -> None:
    """Play two steps of half the groups that are under way, one step ahead; or only wait for as many episodes."""
    tasks = level_sources([("fake", groups)], GROUP_SIZE, 0, "train-")["fake"]
    if not streamed:
        played = (_play_episode(EpisodeSpec("fake", f"train-{n // 8}", n % 8, 0, 0)) for n in range(2 * groups * 8))
        await asyncio.gather(*played)
        return
    player = GroupPlayer(LevelPlay(_play_episode, 0))
    source = GroupSource(tasks=tasks, play_group=player.play_group, groups_per_step=groups // 2)
    stream = GroupStream({"fake": source}, ratio=1.0, clock=asyncio.get_running_loop().time)

    async def publish() -> None:
        await asyncio.sleep(1.0)

    for step in (1, 2):
        await stream.next(step, step - 1)
        await stream.update(publish)
    await stream.close()


def _store(groups: int) -> float:
    """Return processor seconds per group of appending and leasing so many in a folder."""
    made = [
        TrajectoryGroup(f"train-{n}", "fake", [_trajectory(f"train-{n}", member) for member in range(GROUP_SIZE)])
        for n in range(min(groups, 512))
    ]
    with tempfile.TemporaryDirectory() as folder:
        store = FolderStore(Path(folder))
        begun = time.process_time()
        store.append(made, 0)
        assert store.lease(len(made), 1) is not None
        store.commit(1)
        return (time.process_time() - begun) / len(made)


def _processor_seconds(play: Callable[[], Coroutine[Any, Any, None]]) -> float:
    gc.collect()
    gc.disable()  # as a run does while it samples: see roll.config.process.settle_collector
    begun = time.process_time()
    run_in_virtual_time(play())
    spent = time.process_time() - begun
    gc.enable()
    return spent


@dataclass(frozen=True, slots=True)
class Load:
    """What a job of a size asks for, and what one core gives; seconds of processor time.

    Attributes:
        engines: How many.
        episodes: Under way at a time.
        turn: Of placing one turn.
        group: Of booking one group.
        stored: Of storing and leasing one group.
    """

    engines: int
    episodes: int
    turn: float
    group: float
    stored: float

    @property
    def turns_per_second(self) -> float:
        """Turns that all episodes take in a second."""
        return self.episodes / (ENGINE_SECONDS + ENV_SECONDS)

    @property
    def groups_per_second(self) -> float:
        """Groups that end in a second."""
        return self.turns_per_second / TURNS / GROUP_SIZE

    @property
    def workers(self) -> float:
        """Cores that place turns and carry them between processes."""
        return self.turns_per_second * (self.turn + TRIP_SECONDS)

    @property
    def booking(self) -> float:
        """Cores that book groups."""
        return self.groups_per_second * self.group

    @property
    def storing(self) -> float:
        """Cores that write groups and lease them."""
        return self.groups_per_second * self.stored

    @property
    def driver(self) -> float:
        """Cores that the driver needs."""
        return self.booking + self.storing


def measure(engines: int, per_engine: int) -> Load:
    """Run every part with the load of a job of so many engines."""
    episodes = engines * per_engine
    groups = episodes // GROUP_SIZE
    placed = _processor_seconds(lambda: _play_turns(engines, episodes, True))
    straight = _processor_seconds(lambda: _play_turns(engines, episodes, False))
    streamed = _processor_seconds(lambda: _stream_groups(groups, True))
    waited = _processor_seconds(lambda: _stream_groups(groups // 2, False))
    turn = max(placed - straight, 0.0) / (PLAYED * episodes)
    return Load(engines, episodes, turn, max(streamed - waited, 0.0) / groups, _store(groups))


def draw(loads: Sequence[Load], out: Path) -> None:
    """Draw the cores that each part needs; its suffix says what kind of picture ``out`` becomes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    engines = [load.engines for load in loads]
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for label, color, cores in (
        ("environment workers: placing turns, and trips between processes", "#0b7285", [one.workers for one in loads]),
        ("store: writing and leasing groups", "#c2571a", [one.storing for one in loads]),
        ("driver: booking groups", "#5f3dc4", [one.booking for one in loads]),
    ):
        axes.plot(engines, cores, marker="o", color=color, label=label)
    axes.axhline(1.0, color="#495057", linestyle="--", linewidth=1, label="what one process can do")
    axes.set(xscale="log", yscale="log", xlabel="engines", ylabel="cores")
    axes.set_xticks(engines, [f"{number:,}" for number in engines], minor=False)
    axes.minorticks_off()
    axes.legend(loc="upper left", fontsize=8)
    figure.savefig(out, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", type=int, nargs="+", default=[8, 64, 512, 4096])
    parser.add_argument("--episodes", type=int, default=256, help="under way at each engine")
    parser.add_argument("--curve", type=Path, help="picture to write")
    arguments = parser.parse_args()
    loads = []
    print(
        "| engines | episodes | turns/s | µs to place a turn | env workers (cores) | groups/s | µs to book a group "
        "| ms to store one | driver |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for engines in arguments.engines:
        load = measure(engines, arguments.episodes)
        loads.append(load)
        print(
            f"| {load.engines:,} | {load.episodes:,} | {load.turns_per_second:,.0f} | {load.turn * 1e6:.0f} "
            f"| {load.workers:.1f} | {load.groups_per_second:,.1f} | {load.group * 1e6:.0f} | {load.stored * 1e3:.2f} "
            f"| {load.driver:.0%} |",
            flush=True,
        )
    if arguments.curve is not None:
        draw(loads, arguments.curve)
        print(arguments.curve)


if __name__ == "__main__":
    main()
