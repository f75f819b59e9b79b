"""Steps that go on without their latest groups (``over_rollout``): what they gain, and what they are biased to.

    python benchmarks/over_rollout.py [lengths] [engines] [--steps 50] [--seed 0]

What runs is the real ``GroupPlayer`` and ``GroupStream``, in simulated time, with steps of 32 groups of 8 members.

``lengths``: a member takes as many seconds as it is long, however many others there are. Lengths are log-normal
(median e³, sigma 1). Once they are drawn for each member alone; once the task has the larger part in them (of the
variance of the logarithm 0.64), as hard problems have long answers: the distribution over all members is the same. The
bias is the Kolmogorov-Smirnov distance of the lengths that are trained on from the lengths of all members that were
begun, and the quotient of their means.

``engines``: the same devices as in ``async_rollout.py``, answers of its workload ``rlvr``. Groups beyond a step take
places in the engines, so a step without its latest groups has more to sample.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from async_rollout import (
    GROUP_SIZE,
    GROUPS,
    PUBLISH_SECONDS,
    REPLICAS,
    RLVR,
    SLOTS,
    Episodes,
    FakeEngine,
)
from virtual_time import run_in_virtual_time

from roll.config import AgenticConfig
from roll.config.over_rollout import OverRollout
from roll.env_managers.records import EpisodeSpec
from roll.generation import generation_seed
from roll.schedulers.generation import GenerationScheduler
from roll.schedulers.group_stream import GroupStream
from roll.schedulers.groups import GroupPlayer
from roll.schedulers.levels import LevelPlay, level_sources
from roll.schedulers.source_share import GroupSource
from roll.trajectories.model import Status, Trajectory

RATIOS = (0.1, 0.25, 0.5)
MEAN, SIGMA = 3.0, 1.0
"""Of the logarithms of lengths."""
OF_TASK = 0.8
"""Standard deviation of those between tasks, where tasks differ."""


@dataclass(frozen=True)
class Outcome:
    """What a run came to.

    ``distance`` and ``mean`` compare the lengths trained on with those of all members that were begun; ``late`` is
    the share of groups that steps went on without.
    """

    seconds: float
    distance: float
    mean: float
    late: float


def distance(some: Sequence[float], others: Sequence[float]) -> float:
    """Return the Kolmogorov-Smirnov distance: the largest difference of the two distribution functions."""
    left, right = sorted(some), sorted(others)
    return max(abs(bisect_right(left, x) / len(left) - bisect_right(right, x) / len(right)) for x in left + right)


def length(number: int, member: int, of_task: float, seed: int) -> float:
    """Return the length of a member: always the same, whatever else runs."""
    task, own = random.Random(f"{seed} {number}"), random.Random(f"{seed} {number} {member}")
    of_member = (SIGMA**2 - of_task**2) ** 0.5
    return task.lognormvariate(MEAN, of_task) * own.lognormvariate(0.0, of_member)


async def by_length(ratio: float, wait: float, of_task: float, steps: int, seed: int) -> Outcome:
    """Run steps whose members take as long as they are."""
    drawn: dict[tuple[int, int], float] = {}

    async def play(spec: EpisodeSpec, greedy: bool) -> Trajectory:
        number = int(spec.group_id.removeprefix("train-"))
        seconds = drawn[number, spec.episode] = length(number, spec.episode, of_task, seed)
        await asyncio.sleep(seconds)
        return Trajectory("fake", spec.group_id, spec.episode, 0, "same", [], Status.COMPLETED, 1.0)

    player = GroupPlayer(LevelPlay(play, seed))
    return await _steps(player, ratio, wait, steps, seed, drawn)


async def by_engines(ratio: float, wait: float, steps: int, seed: int) -> Outcome:
    """Run steps that are sampled by engines with few places."""
    engines = [FakeEngine(RLVR) for _ in range(REPLICAS)]
    config = AgenticConfig(max_running_requests=SLOTS, deterministic=False)
    generation = GenerationScheduler.for_run(config, engines, clock=asyncio.get_running_loop().time)
    episodes, drawn = Episodes(RLVR, generation), dict[tuple[int, int], float]()

    async def play(spec: EpisodeSpec, greedy: bool) -> Trajectory:
        number = int(spec.group_id.removeprefix("train-"))
        noise = random.Random(generation_seed(spec.run_seed, spec.group_id, spec.episode, 0))
        drawn[number, spec.episode] = int(RLVR.response.draw(noise))
        return await episodes.play(spec, greedy)

    player = GroupPlayer(LevelPlay(play, seed))
    return await _steps(player, ratio, wait, steps, seed, drawn, engines)


async def _steps(
    player: GroupPlayer,
    ratio: float,
    wait: float,
    steps: int,
    seed: int,
    drawn: dict[tuple[int, int], float],
    engines: Sequence[FakeEngine] = (),
) -> Outcome:
    tasks = level_sources([("fake", GROUPS)], GROUP_SIZE, seed, "train-")["fake"]
    spare = OverRollout(ratio=ratio).spare(GROUPS)
    source = GroupSource(tasks=tasks, play_group=player.play_group, groups_per_step=GROUPS, spare=spare)
    stream = GroupStream({"fake": source}, patience=wait)
    trained: list[float] = []
    for step in range(1, steps + 1):
        rollout = await stream.next(step, step - 1)
        for group in rollout.groups:
            number = int(group.group_id.removeprefix("train-"))
            trained += [drawn[number, member.episode] for member in group.trajectories]
        if engines:
            await asyncio.sleep(PUBLISH_SECONDS)
        for engine in engines:
            engine.version = step
        stream.trained()
    seconds, counts = asyncio.get_running_loop().time(), stream.counts
    await stream.close()
    begun = list(drawn.values())
    return Outcome(
        seconds / steps,
        distance(trained, begun),
        fmean(trained) / fmean(begun),
        counts.get("late", 0) / counts["admitted"],
    )


def print_lengths(steps: int, seed: int) -> None:
    """Print the bias, and the seconds of a step, without any engine."""
    print("| ratio | waits | given up | KS, each alone | mean | step | KS, by task | mean | step |")
    print("|---|---|---|---|---|---|---|---|---|")
    whole = [run_in_virtual_time(by_length(0.0, 0.0, of_task, steps, seed)) for of_task in (0.0, OF_TASK)]
    for ratio in RATIOS:
        for wait in (0.0, 60.0):
            runs = [run_in_virtual_time(by_length(ratio, wait, of_task, steps, seed)) for of_task in (0.0, OF_TASK)]
            cells = [
                f"{run.distance:.3f} | {run.mean:.2f} | {run.seconds / base.seconds:.2f}x"
                for run, base in zip(runs, whole, strict=True)
            ]
            print(f"| {ratio:g} | {wait:g} s | {runs[0].late:.0%} | {' | '.join(cells)} |")
    print(f"ratio 0: {whole[0].seconds:.0f} s and {whole[1].seconds:.0f} s a step")


def print_engines(steps: int, seed: int) -> None:
    """Print the bias, and the seconds of sampling a step, at the same devices."""
    whole = run_in_virtual_time(by_engines(0.0, 0.0, steps, seed))
    print(f"\nengines, ratio 0: {whole.seconds:.0f} s a step")
    print("| ratio | waits | given up | KS | mean | step |")
    print("|---|---|---|---|---|---|")
    for ratio in RATIOS:
        for wait in (0.0, 60.0):
            run = run_in_virtual_time(by_engines(ratio, wait, steps, seed))
            step = f"{run.seconds / whole.seconds:.2f}x"
            print(f"| {ratio:g} | {wait:g} s | {run.late:.0%} | {run.distance:.3f} | {run.mean:.2f} | {step} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=["lengths", "engines"])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for case in arguments.cases:
        {"lengths": print_lengths, "engines": print_engines}[case](arguments.steps, arguments.seed)


if __name__ == "__main__":
    main()
