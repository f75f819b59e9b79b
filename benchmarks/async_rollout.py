"""Throughput of asynchronous against synchronous rollouts at the same devices, and how near it is to busy engines.

    python benchmarks/async_rollout.py [agentic] [rlvr] [tails] [--steps 28] [--seed 0]

What runs is the real ``GenerationScheduler``, ``GroupPlayer`` and ``GroupStream``, in simulated time: an event
loop whose clock jumps to the next event. Engines, environments and trainer are models of such. An engine takes
``STEP_BASE + STEP_PER_REQUEST · running`` seconds for one token of each running request, has ``SLOTS`` slots, computes
prompts in chunks, and freezes while weights are published. Response lengths, turns per episode and latencies of
environments are log-normal. The trainer has devices of its own and takes a fixed time, 80 % of what busy engines need
for the samples of a step.

``0`` is synchronous: the same schedulers and devices, each side idle while the other works. ``0, turns`` is synchronous
where engines and trainer take turns on all devices: twice the engines, half the training time, nothing for the
switching. ``tails`` varies how long-tailed latencies of environments are, at the same mean.

The busy-engine limit is the throughput if every slot always had a request and weights were published in no time.
What age allows is another limit (``age_limit``): a group may be trained only so many steps after it began, so steps
cannot be shorter than their longest groups let them be, however many engines there are.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from virtual_time import run_in_virtual_time

from roll.config import AgenticConfig
from roll.env_managers.records import EpisodeSpec
from roll.generation import Completion, GenerationRequest, SamplingParams, generation_seed
from roll.schedulers.generation import GenerationScheduler
from roll.schedulers.group_stream import GroupStream
from roll.schedulers.groups import GroupPlayer
from roll.schedulers.levels import LevelPlay, level_sources
from roll.schedulers.source_share import GroupSource
from roll.trajectories.model import Status, Trajectory, Turn

REPLICAS = 4
SLOTS = 16
STEP_BASE = 0.020
STEP_PER_REQUEST = 0.0002
PREFILL_CHUNK = 512
PUBLISH_SECONDS = 1.0
GROUPS = 32
GROUP_SIZE = 8
WARM_UP = 8
TRAINER_SHARE = 0.8
"""Seconds of a training step over seconds that busy engines need for a step's samples: engines are the bottleneck."""


@dataclass(frozen=True)
class LogNormal:
    """A long-tailed number: ``median · exp(sigma · normal)``, between bounds."""

    median: float
    sigma: float
    least: float = 0.0
    most: float = math.inf

    def draw(self, rng: random.Random) -> float:
        """Return one."""
        return min(max(self.median * math.exp(rng.gauss(0.0, self.sigma)), self.least), self.most)


@dataclass(frozen=True)
class Workload:
    """What episodes are like. RLVR: one turn, whose ``latency`` is that of the grader."""

    name: str
    turns: LogNormal
    response: LogNormal
    latency: LogNormal
    first_prompt: int
    observation: int


AGENTIC = Workload(
    "agentic",
    turns=LogNormal(6, 0.7, least=1, most=40),
    response=LogNormal(80, 0.9, least=4, most=2048),
    latency=LogNormal(2.0, 1.2),
    first_prompt=600,
    observation=120,
)
RLVR = Workload(
    "rlvr",
    turns=LogNormal(1, 0.0, least=1, most=1),
    response=LogNormal(500, 1.1, least=16, most=16384),
    latency=LogNormal(0.2, 1.0),
    first_prompt=300,
    observation=0,
)


class FakeEngine:
    """A model of continuous batching: all running requests advance together, slower the more they are."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.version = 0
        self.work = 0.0
        self._cached: dict[str, int] = {}
        self._running: list[tuple[float, int, asyncio.Future[None]]] = []
        self._serial = count()
        self._done = 0.0
        self._at = 0.0
        self._frozen = False
        self._timer: asyncio.TimerHandle | None = None

    async def generate(self, request: GenerationRequest) -> Completion:
        """Take a slot until prompt and response are through; how long that is depends on the seed alone."""
        drawn = int(self.workload.response.draw(random.Random(request.seed)))
        tokens = min(drawn, request.sampling.max_new_tokens)
        known = self._cached.get(request.session or "", 0)
        steps = math.ceil((len(request.prompt_ids) - known) / PREFILL_CHUNK) + tokens
        first = self.version
        self._advance()
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        mine = (self._done + steps, next(self._serial), over)
        heapq.heappush(self._running, mine)
        if len(self._running) > SLOTS:
            raise RuntimeError("the scheduler exceeded the slots of an engine")
        self._schedule()
        try:
            await over
        except asyncio.CancelledError:
            self._leave(mine)
            raise
        if request.session is not None:
            self._cached[request.session] = len(request.prompt_ids) + tokens
        ids = [0] * tokens
        return Completion(ids, [0.0] * tokens, "stop", (first, self.version), cached_tokens=known)

    async def abort(self, request_id: str) -> None:
        """A request whose caller is cancelled leaves by itself, and no other is aborted here."""

    async def release(self, session: str) -> None:
        """Forget the prefix."""
        self._cached.pop(session, None)

    def freeze(self, frozen: bool) -> None:
        """Stop, or go on without cached prefixes, as after a weight update."""
        self._advance()
        self._frozen = frozen
        if not frozen:
            self._cached.clear()
        self._schedule()

    def _advance(self) -> None:
        """Book the steps since the last event; ``work`` is steps times requests."""
        now = asyncio.get_running_loop().time()
        if self._running and not self._frozen:
            steps = (now - self._at) / step_seconds(len(self._running))
            self._done += steps
            self.work += steps * len(self._running)
        self._at = now

    def _leave(self, request: tuple[float, int, asyncio.Future[None]]) -> None:
        """Free the slot of a request whose caller is cancelled; one that just finished has left."""
        if request not in self._running:
            return
        self._advance()
        self._running.remove(request)
        heapq.heapify(self._running)
        self._schedule()

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._running and not self._frozen:
            seconds = (self._running[0][0] - self._done) * step_seconds(len(self._running))
            self._timer = asyncio.get_running_loop().call_later(max(seconds, 0.0), self._finish)

    def _finish(self) -> None:
        self._advance()
        while self._running and self._running[0][0] <= self._done + 1e-6:
            over = heapq.heappop(self._running)[2]
            if not over.done():
                over.set_result(None)
        self._schedule()


def step_seconds(running: int) -> float:
    return STEP_BASE + STEP_PER_REQUEST * running


def busy_rate() -> float:
    """Request-steps per second of all engines with every slot taken."""
    return REPLICAS * SLOTS / step_seconds(SLOTS)


def alone_seconds(workload: Workload, group: int, seed: int) -> float:
    """Return how long a group takes with engines that nobody else uses and without cached prefixes; see `Episodes`."""
    longest = 0.0
    for episode in range(GROUP_SIZE):
        spec = EpisodeSpec("fake", f"train-{group:07d}", episode, 0, run_seed=seed)
        rng = random.Random(f"{seed} {spec.trajectory_id}")
        seconds = 0.0
        for turn in range(round(workload.turns.draw(rng))):
            drawn = random.Random(generation_seed(seed, spec.group_id, episode, turn))
            tokens = int(workload.response.draw(drawn))
            seconds += tokens * step_seconds(1) + workload.latency.draw(rng)
        longest = max(longest, seconds)
    return longest


def age_limit(durations: Sequence[float], ratio: int, train_seconds: float, first_step: int = WARM_UP) -> float:
    """Return the most groups per second that any scheduler reaches which does not know how long groups will take.

    Every group is trained, and one that began when ``t`` steps were published is trained in step ``t + 1 + ratio`` at
    the latest. So step k is published no earlier than what follows from its slowest group::

        T(k) = max(T(k - 1), T(k - 1 - ratio) + longest duration in step k) + training + publishing

    Who knows nothing of durations cannot put long groups together, so their order is as good as any.

    Args:
        durations: Seconds that each group takes by itself, ``GROUPS`` for each step.
        ratio: Steps that sampling may run ahead; a whole number.
        train_seconds: Seconds of a training step.
        first_step: The steps up to this one do not count.
    """
    published = [0.0]
    for begin in range(0, len(durations), GROUPS):
        step = len(published)
        longest = max(durations[begin : begin + GROUPS])
        there = published[max(step - 1 - ratio, 0)] + longest
        published.append(max(published[-1], there) + train_seconds + PUBLISH_SECONDS)
    return (len(published) - 1 - first_step) * GROUPS / (published[-1] - published[first_step])


class Episodes:
    """Plays episodes of a workload through a real generation scheduler."""

    def __init__(self, workload: Workload, generation: GenerationScheduler) -> None:
        self.workload = workload
        self.generation = generation
        self._sampling = SamplingParams(max_new_tokens=1 << 20, stop_token_ids=(1,))

    async def play(self, spec: EpisodeSpec, greedy: bool) -> Trajectory:
        """Play one episode."""
        workload, name = self.workload, spec.trajectory_id
        rng = random.Random(f"{spec.run_seed} {name}")
        session = name if workload.turns.most > 1 else None
        prompt = [0] * workload.first_prompt
        turns = []
        for turn in range(round(workload.turns.draw(rng))):
            seed = generation_seed(spec.run_seed, spec.group_id, spec.episode, turn)
            number = int(spec.group_id.removeprefix("train-"))
            request = GenerationRequest(f"{name}/{turn}", prompt, self._sampling, seed, session, priority=number)
            completion = await self.generation.generate(request)
            await asyncio.sleep(workload.latency.draw(rng))
            turns.append(Turn([], completion.token_ids, [], policy_version=completion.policy_version))
            prompt = prompt + completion.token_ids + [0] * workload.observation
        if session is not None:
            await self.generation.release(session)
        return Trajectory("fake", spec.group_id, spec.episode, 0, "same", turns, Status.COMPLETED, 1.0)


@dataclass(frozen=True)
class Outcome:
    """What a run came to, after its warm-up.

    ``work`` is in request-steps per group, ``busy`` the share of the engines' full speed.
    """

    groups_per_second: float
    work: float
    busy: float
    staleness_mean: float
    staleness_max: float
    latency_p95: float
    cache_hits: float


async def run(
    workload: Workload, ratio: float, steps: int, train_seconds: float, seed: int, replicas: int = REPLICAS
) -> Outcome:
    engines = [FakeEngine(workload) for _ in range(replicas)]
    clock = asyncio.get_running_loop().time
    config = AgenticConfig(max_running_requests=SLOTS, deterministic=False)
    generation = GenerationScheduler.for_run(config, engines, clock=clock)
    player = GroupPlayer(LevelPlay(Episodes(workload, generation).play, seed))

    async def freeze() -> None:
        for engine in engines:
            engine.freeze(True)

    async def thaw() -> None:
        for engine in engines:
            engine.freeze(False)

    tasks = level_sources([("fake", GROUPS)], GROUP_SIZE, seed, "train-")["fake"]
    source = GroupSource(tasks=tasks, play_group=player.play_group, groups_per_step=GROUPS)
    stream = GroupStream({"fake": source}, ratio=ratio, pause=freeze, resume=thaw, clock=clock)
    began, work_before, staleness, worst = 0.0, 0.0, 0.0, 0.0
    for step in range(1, steps + 1):
        rollout = await stream.next(step, step - 1)
        await asyncio.sleep(train_seconds)

        async def publish(version: int = step) -> None:
            await asyncio.sleep(PUBLISH_SECONDS)
            for engine in engines:
                engine.version = version

        await stream.update(publish)
        if step == WARM_UP:
            began, work_before = clock(), sum(engine.work for engine in engines)
            generation.metrics()
        elif step > WARM_UP:
            staleness += rollout.metrics["rollout/staleness/mean"] / (steps - WARM_UP)
            worst = max(worst, rollout.metrics["rollout/staleness/max"])
    seconds = clock() - began
    work = sum(engine.work for engine in engines) - work_before
    groups = (steps - WARM_UP) * GROUPS
    metrics = generation.metrics()
    await stream.close()
    return Outcome(
        groups / seconds,
        work / groups,
        work / seconds * step_seconds(SLOTS) / (replicas * SLOTS),
        staleness,
        worst,
        metrics["latency_p95"],
        metrics["prefix_cache_hit_rate"],
    )


def compare(workload: Workload, ratios: list[float], steps: int, seed: int) -> None:
    """Print a line per ratio; the trainer's time follows from what a synchronous run's samples take busy engines."""
    probe = run_in_virtual_time(run(workload, 0.0, WARM_UP + 8, 0.0, seed))
    train_seconds = TRAINER_SHARE * probe.work * GROUPS / busy_rate()
    sync = run_in_virtual_time(run(workload, 0.0, steps, train_seconds, seed))
    # Work per group is that of the synchronous run: in an asynchronous one some of it belongs to steps outside.
    limit = busy_rate() / sync.work
    print(f"\n{workload.name}: a training step takes {train_seconds:.1f} s, busy engines allow {limit:.3f} groups/s")
    print(
        "| ratio | groups/s | against 0 | against turns | of the limit | age allows | busy | staleness | turn p95 "
        "| cache hits |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    durations = [alone_seconds(workload, number, seed) for number in range(steps * GROUPS)]
    turns = run_in_virtual_time(run(workload, 0.0, steps, train_seconds / 2, seed, 2 * REPLICAS))
    outcomes = {"0": sync, "0, turns": turns}
    for ratio in ratios:
        outcomes[f"{ratio:g}"] = run_in_virtual_time(run(workload, ratio, steps, train_seconds, seed))
    for name, out in outcomes.items():
        speed = out.groups_per_second
        whole = name.isdecimal()
        allowed = f"{age_limit(durations, int(name), train_seconds) / limit:.1%}" if whole else "-"
        print(
            f"| {name} | {speed:.3f} | {speed / sync.groups_per_second:.2f}x | {speed / turns.groups_per_second:.2f}x "
            f"| {speed / limit:.1%} | {allowed} | {out.busy:.1%} | {out.staleness_mean:.2f} / {out.staleness_max:g} "
            f"| {out.latency_p95:.1f} s | {out.cache_hits:.0%} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=["agentic", "rlvr", "tails"])
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for case in arguments.cases:
        if case == "tails":
            for sigma in (0.4, 0.8, 1.6):
                mean = AGENTIC.latency.median * math.exp(AGENTIC.latency.sigma**2 / 2)
                latency = LogNormal(mean / math.exp(sigma**2 / 2), sigma)
                workload = replace(AGENTIC, name=f"agentic, sigma of latencies {sigma}, same mean", latency=latency)
                compare(workload, [3.0, 5.0, 8.0] if sigma > 1 else [3.0], arguments.steps, arguments.seed)
        else:
            workload = {"agentic": AGENTIC, "rlvr": RLVR}[case]
            compare(workload, [0.5, 1.0, 2.0, 3.0, 4.0], arguments.steps, arguments.seed)


if __name__ == "__main__":
    main()
