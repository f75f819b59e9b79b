"""Prompts to graded groups, with a fake engine whose responses take as long as it is told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.data.prompts import Prompt
from roll.generation import Completion, GenerationRequest, SamplingParams
from roll.rewards.base import Grade, RewardRequest
from roll.schedulers.answers import AnswerLimits, PromptPlay, prompt_source, prompt_tasks
from roll.schedulers.group_stream import GroupStream, StepGroups, play_all
from roll.schedulers.groups import GroupPlayer, Spares
from roll.schedulers.source_share import GroupSource
from roll.trajectories.model import Status, TrajectoryGroup


class Numbers:
    """Prompt ``n`` asks for the number n; remembers which were asked for."""

    def __init__(self) -> None:
        self.begun: set[int] = set()

    def __len__(self) -> int:
        return 1000

    def at(self, position: int) -> Prompt:
        self.begun.add(position)
        question = [{"role": "user", "content": str(position)}]
        return Prompt(f"numbers:{position}", "numbers", "even", question, [position], str(position), {})


class FakeEngine:
    """Answers after some turns of the event loop; remembers what was asked and what was cancelled."""

    def __init__(self, delay: Callable[[GenerationRequest], int] = lambda call: 1, reason: str = "stop") -> None:
        self.calls: list[GenerationRequest] = []
        self.cancelled: list[str] = []
        self.running = self.most_running = 0
        self._delay, self._reason = delay, reason

    async def generate(self, call: GenerationRequest) -> Completion:
        self.calls.append(call)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            for _ in range(self._delay(call)):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled.append(call.request_id)
            raise
        finally:
            self.running -= 1
        return Completion([call.prompt_ids[0], call.seed % 7], [-1.0, -2.0], self._reason, (3, 3))


class Decoder:
    stop_token_ids = (9,)
    text_only = False

    def decode(self, ids: list[int]) -> str:  # type: ignore[override]
        return " ".join(map(str, ids))


class FakeGrader:
    """Scores a response by a function of prompt and episode; ``None`` cannot be graded."""

    def __init__(self, score: Callable[[int, str], float | None]) -> None:
        self.requests: list[RewardRequest] = []
        self._score = score

    async def grade(self, request: RewardRequest) -> Grade:
        self.requests.append(request)
        score = self._score(int(request.ground_truth or -1), request.response)
        if score is None:
            return Grade(None, error="the grader broke")
        return Grade(score, {"fake": score}, {"fake": score}, correct=score >= 1)


def player(engine: FakeEngine, grader: FakeGrader | None = None, **options: object) -> PromptPlay:
    return PromptPlay(
        generate=engine.generate,
        sampling=SamplingParams(),
        decoder=Decoder(),
        graders={"numbers": grader or FakeGrader(lambda number, response: 1.0)},
        limits=AnswerLimits(max_new_tokens=8, sequence_length=16),
        run_seed=1,
        **options,  # type: ignore[arg-type]
    )


def even(group: TrajectoryGroup) -> bool:
    return int(group.trajectories[0].messages[0]["content"]) % 2 == 0


def positions(collected: StepGroups) -> list[int]:
    return [int(group.group_id.removeprefix("train-")) for group in collected.groups]


def collect(engine: FakeEngine, start: int, wanted: int, prompts: Numbers | None = None, **options: Any) -> StepGroups:
    """Answer the prompts of one synchronous step, as a pipeline does."""
    made = {key: options.pop(key) for key in ("grade_at_end", "grader", "greedy") if key in options}
    options.setdefault("replace_failed", options.get("keep") is not None)

    async def main() -> StepGroups:
        members = GroupPlayer(player(engine, **made), with_baselines="greedy" in made)
        source = GroupSource(
            tasks=prompt_source(prompts or Numbers(), 3),
            play_group=members.play_group,
            groups_per_step=wanted,
            in_rounds=made.get("grade_at_end", False),
            **options,
        )
        stream = GroupStream({"prompts": source})
        stream.begin_at(start)
        try:
            got = await stream.next(1, 3)
            # What a checkpoint would say: the next step begins behind the last group that was taken.
            assert stream.position("prompts") == start + got.consumed
            return got
        finally:
            await stream.close()

    return asyncio.run(main())


def test_without_a_filter_every_prompt_is_one_group_and_nothing_more_is_asked() -> None:
    engine = FakeEngine()
    collected = collect(engine, 10, 4, additional=5)
    assert positions(collected) == [10, 11, 12, 13]
    assert (collected.consumed, len(collected.dropped), collected.aborted) == (4, 0, 0)
    assert len(engine.calls) == 12 and len({call.seed for call in engine.calls}) == 12
    first = collected.groups[0].trajectories[1]
    assert first.turns[0].prompt_ids == [10] and first.turns[0].completion_ids[0] == 10
    assert first.score == 1.0 and first.success and first.status is Status.COMPLETED
    assert first.turns[0].policy_version == (3, 3) and first.initial_hash == "numbers:10"


@given(delays=st.randoms(use_true_random=False), wanted=st.integers(1, 6), additional=st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_groups_are_the_first_that_pass_in_the_order_of_the_data_whatever_finishes_first(
    delays: random.Random, wanted: int, additional: int
) -> None:
    engine = FakeEngine(lambda call: delays.randrange(30))
    prompts = Numbers()
    collected = collect(engine, 5, wanted, prompts, keep=even, most=100, additional=additional)
    assert positions(collected) == [6 + 2 * n for n in range(wanted)]
    assert collected.consumed == 2 * wanted, "the next step begins behind the last group taken"
    assert len(collected.dropped) == wanted
    assert collected.aborted <= len(prompts.begun) - collected.consumed
    assert engine.running == 0, "nothing is left running"


def test_long_responses_are_waited_for_so_that_short_ones_have_no_advantage() -> None:
    slow_first = FakeEngine(lambda call: 200 if call.prompt_ids[0] == 0 else 1)
    assert positions(collect(slow_first, 0, 2, keep=even, most=50, additional=8)) == [0, 2]


def test_prompts_that_are_not_needed_are_aborted_and_come_again() -> None:
    engine = FakeEngine(lambda call: 500 if call.prompt_ids[0] > 3 else 1)
    collected = collect(engine, 0, 2, keep=even, most=50, additional=4)
    assert positions(collected) == [0, 2] and collected.consumed == 3
    assert collected.aborted > 0 and engine.cancelled
    assert positions(collect(FakeEngine(), collected.consumed, 2, keep=even, most=50)) == [4, 6]


def test_a_search_that_finds_too_little_ends_with_what_there_is() -> None:
    collected = collect(FakeEngine(), 0, 4, keep=even, most=5)
    assert positions(collected) == [0, 2, 4] and collected.consumed == 5 and not collected.is_fallback


def test_where_nothing_passes_the_step_trains_on_unfiltered_groups_and_says_so() -> None:
    collected = collect(FakeEngine(), 0, 3, keep=lambda group: False, most=6)
    assert positions(collected) == [0, 1, 2] and collected.is_fallback and collected.consumed == 6


def test_no_more_prompts_are_under_way_than_are_missing_and_additional() -> None:
    engine = FakeEngine(lambda call: 5)
    collect(engine, 0, 4, keep=even, most=100, additional=2)
    assert engine.most_running == (4 + 2) * 3


def test_grading_at_the_end_begins_when_every_response_is_there() -> None:
    engine = FakeEngine(lambda call: call.prompt_ids[0] % 5)
    left: list[int] = []
    grader = FakeGrader(lambda number, response: left.append(engine.running) or 1.0)
    collected = collect(engine, 0, 4, keep=even, most=40, grade_at_end=True, grader=grader)
    assert positions(collected) == [0, 2, 4, 6]
    assert set(left) == {0}


def test_a_response_that_cannot_be_graded_is_an_error_and_not_a_zero() -> None:
    grader = FakeGrader(lambda number, response: None if number == 1 else 0.0)
    broken = collect(FakeEngine(), 0, 2, grader=grader).groups[1].trajectories[0]
    assert broken.status is Status.ERROR_REWARD and broken.score is None
    assert broken.error == "numbers:1: the grader broke"


def test_a_response_that_was_cut_off_says_so() -> None:
    cut = collect(FakeEngine(reason="length"), 0, 1).groups[0].trajectories[0]
    assert cut.status is Status.TRUNCATED_LENGTH


def test_the_greedy_member_is_the_baseline_and_not_trained_on() -> None:
    class Greedy(FakeEngine):
        async def generate(self, call: GenerationRequest) -> Completion:
            greedy = Completion([7], [-0.1], "stop")
            return greedy if call.sampling.temperature == 0 else await super().generate(call)

    grader = FakeGrader(lambda number, response: 0.25 if response == "7" else 1.0)
    group = collect(Greedy(), 0, 1, grader=grader, greedy=SamplingParams(temperature=0.0)).groups[0]
    assert group.baseline == 0.25 and len(group.trajectories) == 3
    assert {member.score for member in group.trajectories} == {1.0}


@pytest.mark.parametrize("reason", ["abort", "stop"])
def test_a_greedy_member_that_broke_gives_no_baseline(reason: str) -> None:
    class Greedy(FakeEngine):
        async def generate(self, call: GenerationRequest) -> Completion:
            greedy = Completion([7], [-0.1], reason)
            return greedy if call.sampling.temperature == 0 else await super().generate(call)

    # An aborted response is graded like any other; one that cannot be graded is an error.
    grader = FakeGrader(lambda number, response: 1.0 if response != "7" else 0.0 if reason == "abort" else None)
    group = collect(Greedy(), 0, 1, grader=grader, greedy=SamplingParams(temperature=0.0)).groups[0]
    assert group.baseline is None and len(group.trajectories) == 3


def test_a_stream_answers_the_prompts_of_a_synchronous_run_and_replaces_responses_that_cannot_be_graded() -> None:
    def score(number: int, response: str) -> float | None:
        return None if response.endswith(" 0") else float(number % 2)

    async def stream() -> list[TrajectoryGroup]:
        members = GroupPlayer(player(FakeEngine(), FakeGrader(score)), spares=Spares(5))
        source = GroupSource(tasks=prompt_source(Numbers(), 3), play_group=members.play_group, groups_per_step=4)
        groups = GroupStream({"prompts": source}, ratio=1)
        rollouts = []
        for step in range(1, 4):
            rollouts += (await groups.next(step, 3)).groups
            groups.trained()
        await groups.close()
        return rollouts

    answered = asyncio.run(stream())
    plain = collect(FakeEngine(), 0, 12, grader=FakeGrader(score)).groups
    assert [group.group_id for group in answered] == [group.group_id for group in plain]
    members = [(group.group_id, member) for group in answered for member in group.trajectories]
    assert len(members) == 36 and not any(member.status.is_error for _, member in members)
    assert sum(member.episode >= 3 for _, member in members) > 0, "some were replaced"
    same = {(group.group_id, m.episode): m.turns[0].completion_ids for group in plain for m in group.trajectories}
    assert all(m.turns[0].completion_ids == same[name, m.episode] for name, m in members if m.episode < 3)


def test_an_engine_that_fails_ends_the_rollout_with_its_own_error() -> None:
    class Broken(FakeEngine):
        async def generate(self, call: GenerationRequest) -> Completion:
            if call.prompt_ids[0] == 2:
                raise RuntimeError("out of memory")
            return await super().generate(call)

    for at_end in (False, True):
        engine = Broken(lambda call: 100)
        with pytest.raises(RuntimeError, match="out of memory"):
            collect(engine, 0, 4, grade_at_end=at_end)
        assert engine.running == 0


def test_an_evaluation_answers_all_prompts_in_order_and_only_so_many_at_a_time() -> None:
    engine = FakeEngine(lambda call: 50 - call.prompt_ids[0])
    prompts = [Numbers().at(position) for position in range(10)]
    told: list[int] = []
    members = GroupPlayer(player(engine), on_member=lambda member, greedy: told.append(1))
    groups = asyncio.run(play_all(prompt_tasks(prompts, 2, "val-"), members.play_group, at_a_time=3))
    assert [group.trajectories[0].messages[0]["content"] for group in groups] == [str(n) for n in range(10)]
    assert engine.most_running == 6 and len(told) == 20


def test_the_sampling_noise_depends_on_prompt_and_episode_only() -> None:
    seeds = []
    for delay in (1, 40):
        engine = FakeEngine(lambda call, delay=delay: (call.prompt_ids[0] * delay) % 11)  # type: ignore[misc]
        collect(engine, 3, 4, keep=even, most=50, additional=delay % 3)
        seeds.append({call.request_id: call.seed for call in engine.calls})
    common = seeds[0].keys() & seeds[1].keys()
    assert len(common) >= 12 and all(seeds[0][name] == seeds[1][name] for name in common)
