"""Which part saturates first as a job grows: schedulers, placement and store in simulated time, 8 to 4,096 engines.

    python benchmarks/scale.py [--engines 8 64 512 4096] [--episodes 256] [--curve docs/images/scale.png]

What runs is the real ``plan_placement``, ``GenerationScheduler``, ``GroupStream`` with ``GroupPlayer`` and
``WorkerPool``, and ``FolderStore``, in an event loop whose clock jumps to the next event. Engines and environments only
wait: a turn takes ``ENGINE_SECONDS`` of an engine and ``ENV_SECONDS`` elsewhere in the mean, with long tails. Each
engine has ``--episodes`` episodes under way, and an environment worker has as many. Each part is run by itself, and its
processor time is what is measured: that of the same waiting without it is taken off. All numbers are of one core.

* ``place``: every worker gets its machine and its devices, once, before the run begins.
* ``turn``: each environment worker has a scheduler of its own that sees all engines. ``SAMPLED`` workers, spread evenly
  over all of them, play whole episodes; the others are not there, because they share nothing with those but engines.
  ``busiest`` is how many turns the busiest engine had, as a multiple of the mean; in brackets where every worker begins
  with engine 0.
* ``report``: the driver adds up what the schedulers of all workers count, once a step. Those that do not play report
  what the sampled ones do, of engines further on.
* ``pool``: what to give a place back and to take another costs in one scheduler that has every episode of the job.
* ``group``: one driver begins, hands to workers, books and gives out every group, for two steps of half of all that is
  under way. All episodes of the job are there.
* ``write``, ``index``, ``read``: ``STORED`` groups are written by a driver and read by a learner; the index has every
  group that is under way beside them, and is where all who write take turns.

Two costs are of real Ray and come from ``ray_overhead.py``: a turn's trips between processes (``TRIP_SECONDS``, all
sides together, counted to environment workers), and what an episode that goes out and comes back takes of the driver
(``EPISODE_SECONDS``). The numbers of cores are cost times calls per second: what is above 1 no single process can do.

The remedy is measured too: so many explorers (``mode: explore``) that none is busier than ``BUSY``, each with a driver
for its share of the engines, fill one store in turn. What each needs is in the last columns.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import math
import random
import tempfile
import time
import zlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from virtual_time import run_in_virtual_time

from roll.config import AgenticConfig
from roll.distributed.placement import ClusterResources, NodeResources, check_fits, plan_placement
from roll.env_managers.records import EpisodeSpec
from roll.experience.base import Reader
from roll.experience.entries import Segment, entries_of
from roll.experience.folder import INDEX, FolderStore
from roll.experience.index import Index
from roll.experience.opening import open_file
from roll.generation import Completion, GenerationRequest, SamplingParams
from roll.pipelines.reporting.metrics import generation_metrics
from roll.pipelines.roles.pool import WorkerPool
from roll.schedulers.generation import GenerationScheduler
from roll.schedulers.group_stream import GroupStream
from roll.schedulers.groups import GroupPlayer
from roll.schedulers.levels import LevelPlay, level_sources
from roll.schedulers.replicas import ReplicaPool
from roll.schedulers.source_share import GroupSource
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup, Turn

ENGINE_SECONDS, ENV_SECONDS, SIGMA = 4.0, 1.0, 1.0
TURNS = 8
GROUP_SIZE = 8
TOKENS = 200
TRIP_SECONDS = 0.0012
EPISODE_SECONDS = 0.0009
SAMPLED = 16
"""Environment workers that play, of all that a job has."""
STORED = 512
"""Groups whose members are really written and read."""
BUSY = 0.7
"""Share of a core that an explorer may need."""
DEVICES = 8
"""Engines on a machine."""

_DRAWS = [random.Random(0).lognormvariate(-(SIGMA**2) / 2, SIGMA) for _ in range(1 << 16)]
"""Factors of waiting times, with a mean of 1."""
_PROMPT, _RESPONSE, _LOGPROBS = [0] * 8, [0] * TOKENS, [0.0] * TOKENS
_SAMPLING = SamplingParams(max_new_tokens=TOKENS, stop_token_ids=(1,))
_PLAYED = [Turn(_PROMPT, _RESPONSE, _LOGPROBS, policy_version=(0, 0)) for _ in range(TURNS)]


class WaitingEngine:
    """**Not an engine**: waits as long as one takes, and answers what is always the same."""

    def __init__(self) -> None:
        self.served = 0

    async def generate(self, request: GenerationRequest) -> Completion:
        """Return the answer after a while."""
        self.served += 1
        await asyncio.sleep(ENGINE_SECONDS * _draw(request.seed))
        return Completion(_RESPONSE, _LOGPROBS, "stop", (0, 0))

    async def abort(self, request_id: str) -> None:
        """Nothing is aborted here."""

    async def release(self, session: str) -> None:
        """Nothing is kept."""


class WaitingWorkers:
    """**Not workers**: an episode takes as long as one does, and they return what is always the same."""

    role = "train_env_manager"

    def __init__(self, size: int) -> None:
        self.size = size
        self.ended = 0

    async def one(self, rank: int, method: str, spec: EpisodeSpec, greedy: bool) -> Trajectory:
        """Play an episode."""
        await asyncio.sleep(_episode_seconds(spec.trajectory_id))
        self.ended += 1
        return _trajectory(spec.group_id, spec.episode)


def _draw(number: int) -> float:
    return _DRAWS[number * 7919 & 0xFFFF]


def _episode_seconds(name: str) -> float:
    return TURNS * (ENGINE_SECONDS + ENV_SECONDS) * _draw(zlib.crc32(name.encode()))


def _trajectory(group: str, episode: int) -> Trajectory:
    return Trajectory("fake", group, episode, 0, "same", _PLAYED, Status.COMPLETED, 1.0)


def _made(first: int, count: int) -> list[TrajectoryGroup]:
    return [
        TrajectoryGroup(f"train-{n}", "fake", [_trajectory(f"train-{n}", member) for member in range(GROUP_SIZE)])
        for n in range(first, first + count)
    ]


class _Quiet:
    """Keeps the garbage collector away meanwhile, as a run does while it samples (roll.config.process)."""

    def __enter__(self) -> None:
        gc.collect()
        gc.disable()

    def __exit__(self, *raised: object) -> None:
        gc.enable()


def _seconds(work: Callable[[], object]) -> float:
    """Return the processor seconds of some work."""
    with _Quiet():
        begun = time.process_time()
        work()
        return time.process_time() - begun


def _simulated(play: Callable[[], Coroutine[Any, Any, None]]) -> float:
    return _seconds(lambda: run_in_virtual_time(play()))


def place(engines: int, per_engine: int) -> float:
    """Return the seconds that placing takes: trainer and engines on the same devices, an environment worker each."""
    episodes = engines * per_engine
    devices = {"device_mapping": f"list(range(0,{engines}))"}
    manager = {"env_groups": episodes // GROUP_SIZE, "group_size": GROUP_SIZE, "max_env_num_per_worker": per_engine}
    keys = {"actor_train": devices, "actor_infer": devices, "train_env_manager": manager, "eval_steps": 0}
    config = AgenticConfig.model_validate(
        {**keys, "cluster": "ray", "num_gpus_per_node": DEVICES, "rollout_batch_size": max(episodes // 2, GROUP_SIZE)}
    )
    machines = [NodeResources(f"machine-{n}", 128, DEVICES) for n in range(config.nodes)]
    return _seconds(lambda: check_fits(plan_placement(config), ClusterResources(tuple(machines))))


async def _play_turns(schedulers: Sequence[Any], per_worker: int) -> None:
    """Play whole episodes of some workers, each through its scheduler, begun over a second."""

    async def play(generation: Any, number: int) -> None:
        await asyncio.sleep(number / (len(schedulers) * per_worker))
        name = f"train-{number}"
        for turn in range(TURNS):
            seed = number * TURNS + turn
            await generation.generate(
                GenerationRequest(f"{name}/{turn}", _PROMPT, _SAMPLING, seed, name, priority=number)
            )
            await asyncio.sleep(ENV_SECONDS * _draw(seed + 1))
        await generation.release(name)

    places = [(generation, n) for n in range(per_worker) for generation in schedulers]
    await asyncio.gather(*(play(generation, number) for number, (generation, _) in enumerate(places)))


def turns(engines: int, per_worker: int) -> tuple[float, float, float, float]:
    """Play turns through the schedulers of some workers.

    Returns:
        Seconds to place a turn, how busy the busiest engine is, as it is and if all began with engine 0, and seconds
        to add up what the schedulers of all workers report.
    """
    sampled = min(engines, SAMPLED)

    def run(part: Callable[[int], tuple[int, int]]) -> tuple[float, float, list[dict[str, float]]]:
        replicas = [WaitingEngine() for _ in range(engines)]
        schedulers = [GenerationScheduler(replicas, part=part(n)) for n in range(sampled)]
        seconds = _simulated(lambda: _play_turns(schedulers, per_worker))
        served = [replica.served for replica in replicas]
        return seconds, max(served) * engines / sum(served), [each.metrics() for each in schedulers]

    placed, busiest, reports = run(lambda n: (n * engines // sampled, engines))
    _, crowded, _ = run(lambda n: (0, 1))
    alike = [_moved(reports[n * sampled // engines], n, engines) for n in range(engines)]
    merging = _seconds(lambda: generation_metrics(alike))
    straight = _simulated(lambda: _play_turns([WaitingEngine() for _ in range(sampled)], per_worker))
    return max(placed - straight, 0.0) / (sampled * per_worker * TURNS), busiest, crowded, merging


def _moved(report: dict[str, float], by: int, engines: int) -> dict[str, float]:
    """Return a report of engines further on."""
    moved = {}
    for name, value in report.items():
        rank, _, what = name.removeprefix("replica_").partition("/")
        moved[f"replica_{(int(rank) + by) % engines}/{what}" if what else name] = value
    return moved


def pool(engines: int, episodes: int) -> float:
    """Return seconds to move a place, in one scheduler that has all episodes."""
    held = ReplicaPool([WaitingEngine() for _ in range(engines)], None)
    taken = [held.take(f"train-{n}") for n in range(episodes)]
    moved = random.Random(0).choices(range(episodes), k=min(episodes, 1 << 16))

    def move() -> None:
        for number in moved:
            replica = taken[number]
            assert replica is not None
            held.give_back(replica)
            taken[number] = held.take(f"train-{number}")

    return _seconds(move) / len(moved)


def groups(workers: int, live: int) -> float:
    """Return seconds of a driver for one group, of a job with so many groups under way."""
    found = 0.0

    async def stream() -> None:
        nonlocal found
        group = WaitingWorkers(workers)
        calls = WorkerPool(group)  # type: ignore[arg-type]

        async def play(spec: EpisodeSpec, greedy: bool) -> Trajectory:
            played: Trajectory = await calls.call("play", spec, greedy)
            return played

        player = GroupPlayer(LevelPlay(play, 0))
        tasks = level_sources([("fake", live)], GROUP_SIZE, 0, "train-")["fake"]
        source = GroupSource(tasks=tasks, play_group=player.play_group, groups_per_step=live // 2)
        books = GroupStream({"fake": source}, ratio=1.0, clock=asyncio.get_running_loop().time)
        begun = time.process_time()
        await books.next(1, 0)
        await books.update(_publish)
        await books.next(2, 1)
        found = (time.process_time() - begun) * GROUP_SIZE / group.ended
        await books.close()

    async def wait() -> None:
        await asyncio.gather(*(_plain_episode(n) for n in range(live * GROUP_SIZE)))

    _simulated(stream)
    return max(found - _simulated(wait) / live, 0.0)


async def _publish() -> None:
    await asyncio.sleep(1.0)


async def _plain_episode(number: int) -> Trajectory:
    group, member = f"train-{number // GROUP_SIZE}", number % GROUP_SIZE
    await asyncio.sleep(_episode_seconds(f"{group}/{member}"))
    return _trajectory(group, member)


def store(live: int, writers: int) -> tuple[float, float, float]:
    """Return seconds to write a group, to enter it in the index, and to read it, with so many groups in the index."""
    stored = min(live, STORED)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stores = [FolderStore(folder) for _ in range(writers)]
        stores[0].append(_made(0, stored), 0)
        reading = _seconds(lambda: stores[0].lease(stored, 1)) / stored
        others = entries_of(_made(stored, live), 0)
        indexing = _seconds(lambda: stores[0].add(others, Segment("segments/none.parquet", ""))) / live
        share = max(stored // writers, 1)
        new = [_made(stored + live + n * share, share) for n in range(writers)]
        for each in stores:
            each.append(_made(0, 1), 0)  # a writer sweeps up when it begins: that is not of every group
        writing = sum(_seconds(partial(each.append, own, 0)) for each, own in zip(stores, new, strict=True))
        index = Index(open_file(folder / INDEX, segments=folder / "segments"))
        choosing = _seconds(lambda: index.lease(Reader("other"), max(live // 2, 1), 1)) / max(live // 2, 1)
        index.close()
        for each in stores:
            each.close()
    return writing / (share * writers), indexing, reading + choosing


@dataclass(frozen=True, slots=True)
class Load:
    """What a job of a size asks for, and what one core gives; seconds of processor time.

    Attributes:
        engines: How many.
        per_engine: Episodes under way at each.
        placed: To place all workers.
        turn: To place a turn.
        busiest: Turns of the busiest engine, over the mean; ``crowded`` where all workers begin with the same.
        crowded: See ``busiest``.
        merged: To add up the reports of a step.
        moved: To move a place in a scheduler that has all episodes.
        group: To book a group.
        write: To write one.
        index: To enter one in the index.
        read: To read one.
    """

    engines: int
    per_engine: int
    placed: float
    turn: float
    busiest: float
    crowded: float
    merged: float
    moved: float
    group: float
    write: float
    index: float
    read: float

    @property
    def episodes(self) -> int:
        """Episodes under way."""
        return self.engines * self.per_engine

    @property
    def turns_per_second(self) -> float:
        """Turns that all episodes take in a second."""
        return self.episodes / (ENGINE_SECONDS + ENV_SECONDS)

    @property
    def groups_per_second(self) -> float:
        """Groups that end in a second."""
        return self.turns_per_second / TURNS / GROUP_SIZE

    @property
    def worker(self) -> float:
        """Cores that one environment worker needs."""
        return self.turns_per_second * (self.turn + TRIP_SECONDS) / self.engines

    @property
    def sending(self) -> float:
        """Cores that send episodes to workers and receive them."""
        return self.turns_per_second / TURNS * EPISODE_SECONDS

    @property
    def booking(self) -> float:
        """Cores that book groups."""
        return self.groups_per_second * self.group

    @property
    def writing(self) -> float:
        """Cores that write groups."""
        return self.groups_per_second * self.write

    @property
    def driver(self) -> float:
        """Cores that one driver needs that writes what it samples."""
        return self.sending + self.booking + self.writing

    @property
    def indexing(self) -> float:
        """Cores that enter groups in the index, one after another."""
        return self.groups_per_second * self.index

    @property
    def reading(self) -> float:
        """Cores that read groups."""
        return self.groups_per_second * self.read


def measure(engines: int, per_engine: int) -> Load:
    """Run every part with the load of a job of so many engines."""
    live = max(engines * per_engine // GROUP_SIZE, 2)
    write, index, read = store(live, 1)
    return Load(
        engines,
        per_engine,
        place(engines, per_engine),
        *turns(engines, per_engine),
        pool(engines, engines * per_engine),
        groups(engines, live),
        write,
        index,
        read,
    )


def explorers(load: Load) -> tuple[int, float]:
    """Return how many explorers share a job, and the cores that each needs: measured with its share of the job."""
    many = max(math.ceil(load.driver / BUSY), 1)
    if many == 1:
        return 1, load.driver
    workers = max(load.engines // many, 1)
    live = max(workers * load.per_engine // GROUP_SIZE, 2)
    write, _, _ = store(max(load.episodes // GROUP_SIZE, 2), many)
    return many, load.sending / many + load.groups_per_second / many * (groups(workers, live) + write)


def draw(loads: Sequence[Load], shared: Sequence[tuple[int, float]], out: Path) -> None:
    """Draw the cores that each part needs; its suffix says what kind of picture ``out`` becomes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    engines = [load.engines for load in loads]
    figure, axes = plt.subplots(figsize=(8, 6), layout="constrained")
    for label, color, style, needed in (
        ("one driver, all that it does", "#212529", "-", [one.driver for one in loads]),
        ("… sends episodes to workers and receives them", "#c2571a", ":", [one.sending for one in loads]),
        ("… writes groups into the store", "#e8a33d", ":", [one.writing for one in loads]),
        ("… books groups", "#5f3dc4", ":", [one.booking for one in loads]),
        ("learner: reads groups from the store", "#2b8a3e", "-", [one.reading for one in loads]),
        ("index of the store, where writers take turns", "#868e96", "-", [one.indexing for one in loads]),
        ("one environment worker: places turns, sends them", "#0b7285", "-", [one.worker for one in loads]),
        ("one of several explorers, with a driver each", "#1971c2", "--", [cores for _, cores in shared]),
    ):
        axes.plot(engines, needed, marker="o", markersize=4, color=color, linestyle=style, label=label)
    for load, (many, cores) in zip(loads, shared, strict=True):
        if many > 1:
            place = (load.engines, cores)
            axes.annotate(f"{many} explorers", place, (0, -14), textcoords="offset points", ha="center", fontsize=8)
    axes.axhline(1.0, color="#e03131", linewidth=1, label="one core: what one process can do")
    axes.set(xscale="log", yscale="log", xlabel="engines", ylabel="cores that one process would need")
    axes.set_xticks(engines, [f"{number:,}" for number in engines], minor=False)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.margins(x=0.1)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.savefig(out, dpi=120)


def _row(load: Load, many: int, cores: float) -> str:
    cells = (
        f"{load.engines:,}",
        f"{load.episodes:,}",
        f"{load.placed:.3f}",
        f"{load.turn * 1e6:.0f}",
        f"{load.busiest:.1f} ({load.crowded:.1f})",
        f"{load.merged:.3f}",
        f"{load.moved * 1e6:.1f}",
        f"{load.group * 1e6:.0f}",
        f"{load.write * 1e3:.2f}",
        f"{load.index * 1e6:.0f}",
        f"{load.read * 1e3:.2f}",
        f"{load.worker:.2f}",
        f"{load.driver:.2f}",
        f"{load.indexing:.2f}",
        f"{load.reading:.2f}",
        f"{many} × {cores:.2f}",
    )
    return f"| {' | '.join(cells)} |"


def _saturations(load: Load) -> Iterator[str]:
    """Say at how many engines each part needs a whole core, by the costs of the largest job."""
    for label, cores in (
        ("one driver that writes what it samples", load.driver),
        ("one driver without a store", load.sending + load.booking),
        ("a learner that reads from a store", load.reading),
        ("the index of a store", load.indexing),
    ):
        yield f"{label}: a whole core at {load.engines / cores:,.0f} engines"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", type=int, nargs="+", default=[8, 64, 512, 4096])
    parser.add_argument("--episodes", type=int, default=256, help="under way at each engine")
    parser.add_argument("--curve", type=Path, help="picture to write")
    arguments = parser.parse_args()
    columns = (
        "engines", "episodes", "s to place workers", "µs to place a turn", "busiest engine (all from 0)",
        "s to add up reports", "µs to move a place", "µs to book a group", "ms to write it", "µs in the index",
        "ms to read it", "env worker, cores", "driver, cores", "index, cores", "learner reads, cores",
        "explorers × cores",
    )  # fmt: skip
    print(f"| {' | '.join(columns)} |")
    print("|" + "---|" * len(columns))
    loads, shared = [], []
    for engines in arguments.engines:
        load = measure(engines, arguments.episodes)
        loads.append(load)
        shared.append(explorers(load))
        print(_row(load, *shared[-1]), flush=True)
    print("\n".join(_saturations(loads[-1])))
    if arguments.curve is not None:
        draw(loads, shared, arguments.curve)
        print(arguments.curve)


if __name__ == "__main__":
    main()
