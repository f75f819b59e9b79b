"""Everything at once: random latencies, failures, deaths and weight updates, in simulated time. Nothing gets lost."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_fakes import FakeReplica, call, trajectory
from virtual_time import run_in_virtual_time

from roll.env_managers.records import EpisodeSpec
from roll.generation import GenerationRequest
from roll.schedulers.generation import GenerationScheduler
from roll.schedulers.group_stream import GroupStream, StepGroups
from roll.schedulers.groups import GroupPlayer, Spares
from roll.schedulers.levels import Level, LevelPlay, level_sources
from roll.schedulers.source_share import GroupSource
from roll.schedulers.tasks import Task
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup

STEPS = 6


@dataclass(frozen=True)
class Case:
    """What may happen in a run."""

    seed: int
    groups: int
    size: int
    ratio: float
    replicas: int
    limit: int | None
    window: int | None
    spares: int
    dull: float
    failing: float
    hanging: float
    deaths: int
    resumed_after: int


CASES = st.builds(
    Case,
    seed=st.integers(0, 2**32),
    groups=st.integers(1, 5),
    size=st.integers(1, 3),
    ratio=st.sampled_from([0.0, 0.3, 0.5, 1.0, 1.7, 3.0]),
    replicas=st.integers(1, 4),
    limit=st.one_of(st.none(), st.integers(1, 4)),
    window=st.one_of(st.none(), st.integers(0, 4)),
    spares=st.integers(0, 2),
    dull=st.sampled_from([0.0, 0.3, 0.9]),
    failing=st.sampled_from([0.0, 0.2]),
    hanging=st.sampled_from([0.0, 0.05]),
    deaths=st.integers(0, 3),
    resumed_after=st.integers(0, STEPS),
)


class Run:
    """One process of a run: real schedulers over fake engines; a real clock would take hours."""

    def __init__(self, case: Case, version: int, latency_seed: int = 0) -> None:
        self.case = case
        self.latency = random.Random(f"latency {case.seed} {latency_seed} {version}")
        self.version = self.newest = version
        self.begun: list[int] = []
        self.most_live = 0
        self.requests: Counter[str] = Counter()
        self.engines = [FakeReplica(self.seconds) for _ in range(case.replicas)]
        self.generation = GenerationScheduler(
            self.engines, max_running_requests=case.limit, timeout=200.0, retries=5, clock=now
        )
        self.player = GroupPlayer(LevelPlay(self.play, case.seed), spares=Spares(case.spares))
        source = GroupSource(
            tasks=level_sources([("fake", case.groups)], case.size, case.seed, "train-")["fake"],
            play_group=self.play_group,
            groups_per_step=case.groups,
            window=case.window,
            keep=lambda group: self.luck(group.group_id) >= case.dull,
            most=4 * case.groups,
        )
        self.stream = GroupStream({"fake": source}, ratio=case.ratio, clock=now)
        for engine in self.engines:
            engine.version = version

    def luck(self, *key: object) -> float:
        """Return a number in [0, 1) that depends on what is asked alone."""
        return random.Random(f"{self.case.seed} {key}").random()

    def seconds(self, request: GenerationRequest) -> float:
        if self.case.hanging and self.latency.random() < self.case.hanging:
            return 1e6
        return self.latency.lognormvariate(0, 1.5)

    async def play_group(self, spec: Task[Level]) -> TrajectoryGroup:
        self.begun.append(spec.number)
        self.most_live = max(self.most_live, self.stream.live)
        return await self.player.play_group(spec)

    async def play(self, spec: EpisodeSpec, greedy: bool) -> Trajectory:
        versions = []
        name = spec.trajectory_id
        try:
            for turn in range(1 + int(3 * self.luck(name))):
                await asyncio.sleep(self.latency.lognormvariate(0, 1))
                completion = await self.generation.generate(
                    call(f"{name}/{turn}", name, priority=int(spec.group_id[6:]))
                )
                if completion.finish_reason == "abort":
                    return trajectory(spec.group_id, spec.episode, versions, Status.ABORTED)
                versions.append(completion.policy_version)
            broken = self.luck(name, "fails") < self.case.failing
            return trajectory(spec.group_id, spec.episode, versions, Status.ERROR_ENV if broken else Status.COMPLETED)
        finally:
            await self.generation.release(name)

    async def step(self, step: int) -> StepGroups:
        rollout = await self.stream.next(step, self.version)
        await asyncio.sleep(self.latency.lognormvariate(1, 1))

        async def publish() -> None:
            self.newest = step
            for engine in self.engines:
                await asyncio.sleep(self.latency.random())
                engine.version = step

        await self.stream.update(publish)
        self.version = step
        return rollout

    async def trouble(self) -> None:
        """Kill replicas and put new ones, with the current weights, in their place."""
        for _ in range(self.case.deaths):
            await asyncio.sleep(self.latency.expovariate(0.1))
            rank = self.latency.randrange(len(self.engines))
            self.engines[rank].deaf = self.latency.random() < 0.5
            self.engines[rank].die()
            await asyncio.sleep(self.latency.expovariate(0.1))
            fresh = FakeReplica(self.seconds)
            fresh.version = self.newest
            self.engines[rank] = fresh
            self.generation.replace(rank, fresh)


def now() -> float:
    return asyncio.get_running_loop().time()


def ids(groups: list[TrajectoryGroup]) -> list[int]:
    return [int(group.group_id[6:]) for group in groups]


async def several_steps(run: Run, steps: range) -> list[StepGroups]:
    """Take some steps; every check that must hold at any moment is made here."""
    trouble = asyncio.create_task(run.trouble())
    rollouts = []
    capacity = math.floor((1 + run.case.ratio) * run.case.groups + 1e-9)
    try:
        for step in steps:
            rollout = await run.step(step)
            rollouts.append(rollout)
            bound = math.ceil(run.case.ratio)
            assert rollout.metrics["rollout/staleness/max"] <= bound and not rollout.metrics["rollout/groups_stale"]
            assert 1 <= len(rollout.groups) <= run.case.groups
            assert all(len(group.trajectories) == run.case.size for group in rollout.groups)
    finally:
        await run.stream.close()
        trouble.cancel()
    assert run.most_live <= capacity
    if run.case.limit is not None:
        assert all(engine.most_running <= run.case.limit for engine in run.engines)
    assert not any(engine.running for engine in run.engines), "closing leaves nothing running"
    assert run.generation.metrics()["running"] == 0 == run.generation.metrics()["queue"]
    return rollouts


def check_books(run: Run, rollouts: list[StepGroups]) -> None:
    """Every group that began was trained once, or counted with a reason."""
    counts = Counter(run.stream.counts)
    trained = [number for rollout in rollouts for number in ids(rollout.groups)]
    dropped = [each.number for rollout in rollouts for each in rollout.dropped]
    assert len(set(trained + dropped)) == len(trained + dropped)
    assert set(trained + dropped) <= set(run.begun) and len(set(run.begun)) == len(run.begun)
    assert counts["admitted"] == sum(counts[why] for why in ("trained", "filtered", "failed", "stale", "cancelled"))
    assert counts["trained"] == len(trained)
    # Groups that were filtered out or failed for a step that never came are counted, and in no step's list.
    assert len(dropped) <= counts["filtered"] + counts["failed"] + counts["stale"]


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(CASES)
def test_every_admitted_group_is_trained_once_or_counted_with_a_reason(case: Case) -> None:
    """Also across a resume, which begins no more at once than a run does. A deadlock would be an error of the clock."""

    async def whole() -> None:
        first = Run(case, 0)
        rollouts = await several_steps(first, range(1, case.resumed_after + 1))
        check_books(first, rollouts)
        state: dict[str, Any] = json.loads(json.dumps(first.stream.state_dict()))
        second = Run(case, case.resumed_after)
        second.stream.load_state_dict(state)
        more = await several_steps(second, range(case.resumed_after + 1, STEPS + 1))
        check_books(second, more)
        trained = [number for rollout in rollouts + more for number in ids(rollout.groups)]
        assert len(set(trained)) == len(trained), "no group is trained twice"
        begun = set(first.begun) | set(second.begun)
        assert begun == set(range(len(begun))), "no number is left out"

    run_in_virtual_time(whole())


@pytest.mark.long
@settings(max_examples=30, deadline=None)
@given(CASES, st.integers(0, 2**32))
def test_without_a_lead_steps_get_the_same_groups_whatever_the_latencies(case: Case, latency_seed: int) -> None:
    quiet = replace(case, ratio=0.0, hanging=0.0, deaths=0)

    async def steps(seed: int) -> list[list[tuple[str, list[int]]]]:
        rollouts = await several_steps(Run(quiet, 0, seed), range(1, STEPS + 1))
        return [[(g.group_id, [t.episode for t in g.trajectories]) for g in each.groups] for each in rollouts]

    assert run_in_virtual_time(steps(0)) == run_in_virtual_time(steps(latency_seed))
