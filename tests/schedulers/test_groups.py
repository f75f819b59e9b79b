"""Rollouts of the project's own environments against a scripted engine."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

import roll.envs
from roll.env_managers import CallThreads, EnvManagerLimits, Templates, TrajectoryEnvManager
from roll.env_managers.groups import GroupMismatchError
from roll.env_managers.records import EpisodeSpec
from roll.generation import Completion, GenerationRequest, SamplingParams
from roll.models.toy.tokenizer import build_tokenizer
from roll.rendering import ChatRenderer
from roll.schedulers.generation import GenerationScheduler
from roll.schedulers.group_stream import play_all
from roll.schedulers.groups import GroupPlayer, OnMember, RolloutError, require_some
from roll.schedulers.levels import Level, LevelPlay, level_sources, level_tasks
from roll.schedulers.tasks import Task
from roll.strategies.base import GenerationStrategy, WeightUpdate
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup

TOKENIZER = build_tokenizer(["Turn 1:\n######\n#__S##\nActions left: 9.\n<answer>Up</answer>\n"] * 4)
VALIDATION_OFFSET = 1 << 40
TAGS = ("SimpleSokoban", "FrozenLake")
MOVES = ("Up", "Down", "Left", "Right")


class FakeEngine:
    """Answers with an action that depends on the request's seed alone, after a delay that depends on ``order``."""

    def __init__(self, order: int = 0, fails_at: str | None = None) -> None:
        self.order = order
        self.fails_at = fails_at
        self.requests: list[GenerationRequest] = []
        self.released: list[str] = []

    async def generate(self, request: GenerationRequest) -> Completion:
        self.requests.append(request)
        for _ in range(random.Random(f"{self.order} {request.request_id}").randrange(6)):
            await asyncio.sleep(0)
        if request.request_id == self.fails_at:
            raise MemoryError("the engine is out of memory")
        rng = random.Random(request.seed)
        text = f"<answer>{rng.choice(MOVES)}</answer>"
        ids = [*TOKENIZER.encode(text, add_special_tokens=False), request.sampling.stop_token_ids[0]]
        return Completion(ids, [-rng.random() for _ in ids], "stop")

    async def release(self, session: str) -> None:
        self.released.append(session)

    async def abort(self, request_id: str) -> None: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def sleep(self) -> None: ...

    async def wake(self, tags: Sequence[str] | None = None) -> None: ...

    async def update_weights(self, update: WeightUpdate) -> None: ...

    async def close(self) -> None: ...


def scheduler(
    engine: FakeEngine,
    make_env: Callable[[str], Callable[[], Any]] | None = None,
    threads: CallThreads | None = None,
    with_baselines: bool = False,
    on_member: OnMember | None = None,
) -> GroupPlayer[Level]:
    generation = GenerationScheduler(engine)
    managers = {}
    for name in TAGS:
        tag = roll.envs.get_tag(name)
        managers[name] = TrajectoryEnvManager(
            renderer=ChatRenderer(TOKENIZER),
            generate=generation.generate,
            limits=EnvManagerLimits(max_steps=4, sequence_length=2048, max_new_tokens=32),
            templates=Templates(tag.agent_system_template, tag.agent_template),
            threads=threads,
        )
    factories = make_env or (lambda name: lambda: roll.envs.make(name))
    environments = {name: factories(name) for name in TAGS}

    async def play(spec: EpisodeSpec, is_greedy: bool) -> Trajectory:
        try:
            return await managers[spec.tag].run(spec, environments[spec.tag])
        finally:
            await generation.release(spec.trajectory_id)

    return GroupPlayer(LevelPlay(play, 7), with_baselines=with_baselines, on_member=on_member)


def specs(step: int = 1, size: int = 3) -> list[Task[Level]]:
    return level_tasks([("SimpleSokoban", 2), ("FrozenLake", 2)], size, 7, "train-", first=(step - 1) * 4)


def collect(player: GroupPlayer[Level], wanted: list[Task[Level]]) -> list[TrajectoryGroup]:
    async def main() -> list[TrajectoryGroup]:
        groups = await play_all(wanted, player.play_group)
        require_some(groups)
        return groups

    return asyncio.run(asyncio.wait_for(main(), 200))


def without_times(groups: list[TrajectoryGroup]) -> list[TrajectoryGroup]:
    for group in groups:
        for trajectory in group.trajectories:
            for turn in trajectory.turns:
                turn.seconds = {}
    return groups


def members(groups: list[TrajectoryGroup]) -> list[Trajectory]:
    return [trajectory for group in groups for trajectory in group.trajectories]


def test_the_fake_engine_is_a_generation_strategy() -> None:
    assert isinstance(FakeEngine(), GenerationStrategy)


def test_results_come_in_the_order_asked_for_whoever_finishes_first() -> None:
    wanted = specs()
    engines = [FakeEngine(order) for order in range(3)]
    first, second, third = (
        without_times(collect(scheduler(engine, threads=threads), wanted))
        for engine, threads in zip(engines, (None, None, CallThreads(4)), strict=True)
    )
    assert len({tuple(r.request_id for r in engine.requests) for engine in engines}) == 3, "the orders differed"
    assert first == second == third
    assert [(g.group_id, g.tag, len(g.trajectories)) for g in first] == [(s.group_id, s.tag, 3) for s in wanted]
    for group in first:
        assert [t.episode for t in group.trajectories] == [0, 1, 2]
        assert {(t.group_id, t.tag) for t in group.trajectories} == {(group.group_id, group.tag)}
    ends = Counter((t.status, len(t.turns), t.error) for t in members(first))
    assert (Status.TRUNCATED_TURNS, 4, None) in ends, ends


def test_members_of_a_group_share_the_level_and_sample_for_themselves() -> None:
    groups = collect(scheduler(FakeEngine()), specs())
    for group in groups:
        assert len({(t.seed, t.initial_hash) for t in group.trajectories}) == 1
        assert len({tuple(turn.response for turn in t.turns) for t in group.trajectories}) > 1
    assert len({t.initial_hash for t in members(groups) if t.tag == "SimpleSokoban"}) == 2


def test_progress_counts_every_episode_once() -> None:
    seen: Counter[bool] = Counter()
    tokens = 0

    def count(member: Trajectory, greedy: bool) -> None:
        nonlocal tokens
        seen[greedy] += 1
        tokens += 0 if greedy else member.completion_tokens

    groups = collect(scheduler(FakeEngine(), on_member=count, with_baselines=True), specs())
    assert seen == {False: 12, True: 4}, "whoever shows progress leaves the greedy members out"
    assert tokens == sum(member.completion_tokens for member in members(groups))


class BrokenEnv:
    instruction = ""

    def reset(self, *, seed: int | None = None) -> Any:
        raise OSError("the level server is down")

    def close(self) -> None: ...


def breaking(every: int) -> Callable[[str], Callable[[], Any]]:
    """Factories whose every n-th environment is broken."""
    made: Counter[str] = Counter()

    def factory(name: str) -> Callable[[], Any]:
        def make() -> Any:
            made[name] += 1
            return BrokenEnv() if made[name] % every == 0 else roll.envs.make(name)

        return make

    return factory


def test_an_episode_that_fails_does_not_stop_the_others() -> None:
    engine = FakeEngine()
    groups = collect(scheduler(engine, breaking(every=3)), specs())
    failed = [t for t in members(groups) if t.status.is_error]
    healthy = [t for t in members(groups) if not t.status.is_error]
    assert len(failed) == 4 and len(healthy) == 8
    for trajectory in failed:
        assert trajectory.status is Status.ERROR_ENV and trajectory.score is None
        assert "the level server is down" in (trajectory.error or "")
    assert all(t.turns and t.score is not None for t in healthy)


def test_a_rollout_in_which_everything_failed_is_an_error_that_holds_the_first() -> None:
    engine = FakeEngine()
    with pytest.raises(RolloutError, match=r"Every one of the 12 episodes failed\. The first: .*level server is down"):
        collect(scheduler(engine, breaking(every=1)), specs())
    assert not engine.requests


@pytest.mark.parametrize("every", [1, 3, 1000])
def test_every_trajectory_is_released_once_also_when_it_failed(every: int) -> None:
    engine = FakeEngine()
    rollouts = scheduler(engine, breaking(every))
    try:
        collect(rollouts, specs())
    except RolloutError:
        assert every == 1
    assert Counter(engine.released) == Counter(f"{s.group_id}/{k}" for s in specs() for k in range(3))
    assert {request.session for request in engine.requests} <= set(engine.released)


def test_an_engine_that_fails_ends_the_rollout_with_its_own_exception() -> None:
    engine = FakeEngine(fails_at="train-0000001/2/1")
    with pytest.raises(MemoryError, match="the engine is out of memory"):
        collect(scheduler(engine), specs())
    assert len(engine.released) == len(set(engine.released)) == 12


def test_a_group_whose_members_see_different_levels_is_an_error() -> None:
    drawn = iter(range(100))

    class Careless(BrokenEnv):
        def reset(self, *, seed: int | None = None) -> Any:
            return f"level {next(drawn)}", {}

        def step(self, response: str) -> Any:
            return "over", 0.0, True, False, {}

    with pytest.raises(GroupMismatchError, match="train-0000000"):
        collect(scheduler(FakeEngine(), lambda name: Careless), specs())


def test_groups_are_numbered_through_the_run_and_tags_keep_their_shares() -> None:
    assert [(s.tag, s.group_id, s.size) for s in specs(step=1, size=5)] == [
        ("SimpleSokoban", "train-0000000", 5),
        ("SimpleSokoban", "train-0000001", 5),
        ("FrozenLake", "train-0000002", 5),
        ("FrozenLake", "train-0000003", 5),
    ]
    assert [s.group_id for s in specs(step=2)] == [f"train-{n:07d}" for n in range(4, 8)]
    assert specs(step=2) == specs(step=2)


def test_no_two_groups_of_a_run_share_a_level_and_evaluation_keeps_its_own() -> None:
    groups = [("SimpleSokoban", 40), ("FrozenLake", 24)]
    training = [s for step in range(50) for s in level_tasks(groups, 8, 7, "train-", first=step * 64)]
    validation = level_tasks([("SimpleSokoban", 256), ("FrozenLake", 64)], 1, 7, "val-", offset=VALIDATION_OFFSET)
    everything = [s.what.seed for s in training + validation]
    assert len(set(everything)) == len(everything) == 50 * 64 + 320
    assert len({s.group_id for s in training + validation}) == len(everything)
    assert all(0 <= seed < 2**63 for seed in everything)
    other = level_tasks(groups, 8, 8, "train-")
    assert not {s.what.seed for s in other} & set(everything)


def test_the_groups_of_endless_sources_are_those_of_the_steps() -> None:
    counts = [("SimpleSokoban", 2), ("FrozenLake", 1)]
    sources = level_sources(counts, 4, 7, "train-")
    steps = [spec for step in range(5) for spec in level_tasks(counts, 4, 7, "train-", first=3 * step)]
    for tag, _ in counts:
        wanted = [spec for spec in steps if spec.tag == tag]
        assert [sources[tag](number) for number in range(len(wanted))] == wanted


def test_one_group_comes_with_its_greedy_member_as_baseline() -> None:
    engine = FakeEngine()
    group = asyncio.run(scheduler(engine, with_baselines=True).play_group(specs()[2]))
    assert group.group_id == "train-0000002" and [t.episode for t in group.trajectories] == [0, 1, 2]
    assert group.baseline is not None and engine.released.count("train-0000002/3") == 1


def test_requests_reach_the_engine_as_they_are_and_their_tokens_are_counted() -> None:
    engine = FakeEngine()
    generation = GenerationScheduler(engine)
    sampling = SamplingParams(max_new_tokens=20, temperature=0.5, top_p=0.9, top_k=4, stop_token_ids=(3, 2))
    asked = [
        GenerationRequest(f"g/0/{turn}", [1, 2], replace(sampling, max_new_tokens=limit), seed=turn, session="g/0")
        for turn, limit in enumerate((8, 50))
    ]

    async def main() -> list[Completion]:
        return [await generation.generate(request) for request in asked]

    completions = asyncio.run(main())
    assert engine.requests == asked
    assert generation.sampled_tokens == sum(len(c.token_ids) for c in completions) > 0
