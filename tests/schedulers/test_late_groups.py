"""Steps that begin more groups than they train on and go on without the latest, in simulated time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import over_rollout
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_fakes import FakeReplica, call, group_of
from virtual_time import run_in_virtual_time

from roll.schedulers.admission import Admission
from roll.schedulers.generation import GenerationScheduler
from roll.schedulers.group_stream import GroupStream, StepGroups
from roll.schedulers.source_share import GroupSource
from roll.trajectories.model import Status, TrajectoryGroup


class Played:
    """Groups that take as many seconds as told, and what became of each."""

    def __init__(self, seconds: Callable[[int], float], fate: Callable[[int], str] = lambda number: "good") -> None:
        self.seconds, self.fate = seconds, fate
        self.begun: list[int] = []
        self.finished: list[int] = []
        self.cancelled: list[int] = []

    def source(self, **options: Any) -> GroupSource[int]:
        return GroupSource(tasks=lambda number: number, play_group=self.play, **options)

    async def play(self, number: int) -> TrajectoryGroup:
        self.begun.append(number)
        try:
            await asyncio.sleep(self.seconds(number))
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        self.finished.append(number)
        fate = self.fate(number)
        status = Status.ERROR_ENV if fate == "fail" else Status.COMPLETED
        return group_of(number, [], status=status, score=0.0 if fate == "dull" else 1.0)


def numbers(rollout: StepGroups) -> list[int]:
    return [int(group.group_id.removeprefix("train-")) for group in rollout.groups]


def not_dull(group: TrajectoryGroup) -> bool:
    return group.trajectories[0].score != 0.0


def one_step(played: Played, patience: float = 0.0, **options: Any) -> tuple[StepGroups, float, GroupStream]:
    """Return the first step of a stream, when it was there, and the stream, which is closed."""

    async def main() -> tuple[StepGroups, float, GroupStream]:
        options.setdefault("groups_per_step", 4)
        stream = GroupStream({"only": played.source(**options)}, patience=patience)
        rollout, at = await stream.next(1, 0), asyncio.get_running_loop().time()
        assert len(played.begun) == len(played.finished) + len(played.cancelled), "nothing runs while a step is trained"
        stream.trained()
        await stream.close()
        return rollout, at, stream

    return run_in_virtual_time(main())


def test_a_step_goes_on_without_the_latest_groups_once_it_has_enough() -> None:
    played = Played(lambda number: {1: 50.0, 3: 60.0}.get(number, 1.0 + number / 10))
    rollout, at, stream = one_step(played, spare=2)
    assert numbers(rollout) == [0, 2, 4, 5] and at == pytest.approx(1.5)
    assert played.begun == list(range(6)) and played.cancelled == [1, 3]
    assert rollout.late == {"only": 2} and rollout.metrics["rollout/groups_late"] == 2 and rollout.consumed == 6
    assert stream.counts == {"admitted": 6, "trained": 4, "late": 2}


def test_a_step_that_waits_takes_the_oldest_that_are_finished_then() -> None:
    played = Played(lambda number: {1: 8.0, 3: 60.0}.get(number, 1.0))
    rollout, at, _ = one_step(played, patience=10.0, spare=2)
    assert numbers(rollout) == [0, 1, 2, 4] and at == 11.0
    assert played.cancelled == [3] and rollout.late == {"only": 2}, "group 5 was finished, and younger than all of them"


def test_a_step_does_not_wait_for_groups_that_are_younger_than_its_own() -> None:
    played = Played(lambda number: 500.0 if number > 3 else 1.0)
    rollout, at, _ = one_step(played, patience=100.0, spare=2)
    assert numbers(rollout) == [0, 1, 2, 3] and at == 1.0 and played.cancelled == [4, 5]


def test_groups_that_broke_are_early_and_do_not_take_the_place_of_others() -> None:
    played = Played(lambda number: 1.0 if number < 3 else 5.0, fate=lambda number: "fail" if number < 3 else "good")
    rollout, _, _ = one_step(played, spare=2)
    assert numbers(rollout) == [3, 4, 5, 6] and rollout.metrics["rollout/groups_failed"] == 3


def test_groups_are_replaced_until_there_are_enough_and_not_after() -> None:
    seconds = {0: 1.0, 1: 2.0, 5: 30.0}
    fates = {0: "dull", 5: "dull"}
    played = Played(lambda number: seconds.get(number, 3.0), fate=lambda number: fates.get(number, "good"))
    rollout, at, _ = one_step(played, patience=100.0, spare=2, keep=not_dull, most=40)
    assert numbers(rollout) == [1, 2, 3, 4] and at == 3.0
    assert played.begun == list(range(7)) and played.cancelled == [5, 6], "group 6 is in the place of group 0"


@pytest.mark.parametrize("spare", [2, 12])
def test_a_step_that_finds_too_few_trains_on_those(spare: int) -> None:
    played = Played(lambda number: 1.0, fate=lambda number: "good" if number == 2 else "dull")
    rollout, _, _ = one_step(played, spare=spare, keep=not_dull, most=8)
    assert numbers(rollout) == [2] and len(played.begun) == max(8, 4 + spare) and not rollout.late


def test_no_group_is_given_up_while_another_source_still_needs_its_own() -> None:
    quick, slow = Played(lambda number: 30.0 if number == 0 else 1.0), Played(lambda number: 20.0 + 20.0 * number)

    async def main() -> tuple[StepGroups, float]:
        sources = {"quick": quick.source(groups_per_step=2, spare=1), "slow": slow.source(groups_per_step=1, spare=1)}
        stream = GroupStream(sources, patience=15.0)
        rollout, at = await stream.next(1, 0), asyncio.get_running_loop().time()
        await stream.close()
        return rollout, at

    rollout, at = run_in_virtual_time(main())
    assert numbers(rollout) == [0, 1, 0] and at == 30.0, "the step waited for slow until 20, and then for 15 more"
    assert rollout.late == {"quick": 1, "slow": 1} and slow.cancelled == [1]


def test_a_resumed_run_goes_on_behind_the_groups_that_were_given_up() -> None:
    def seconds(number: int) -> float:
        return 50.0 if number in (1, 8) else 1.0

    async def steps(played: Played, state: Any, count: int) -> tuple[list[list[int]], Any]:
        stream = GroupStream({"only": played.source(groups_per_step=4, spare=1)})
        stream.load_state_dict(state)
        found = []
        for step in range(1, count + 1):
            found.append(numbers(await stream.next(step, step - 1)))
            in_training = stream.state_dict()
            stream.trained()
        interrupted = asyncio.ensure_future(stream.next(count + 1, count))
        await asyncio.sleep(0.5)
        interrupted.cancel()
        await asyncio.gather(interrupted, return_exceptions=True)
        await stream.close()
        assert in_training != stream.state_dict(), "a step counts once it is trained"
        return found, stream.state_dict()

    first, state = run_in_virtual_time(steps(Played(seconds), {}, 2))
    assert first == [[0, 2, 3, 4], [5, 6, 7, 9]] and state == {"only": {"next": 10, "unfinished": []}}
    resumed, _ = run_in_virtual_time(steps(Played(seconds), state, 2))
    assert resumed == [[10, 11, 12, 13], [15, 16, 17, 18]]


def test_requests_of_late_groups_are_aborted_at_their_engine() -> None:
    engine = FakeReplica(lambda request: 100.0 if request.request_id == "group 0" else 1.0)

    async def main() -> None:
        generation = GenerationScheduler([engine])

        async def play(number: int) -> TrajectoryGroup:
            await generation.generate(call(f"group {number}"))
            return group_of(number, [])

        source = GroupSource(tasks=lambda number: number, play_group=play, groups_per_step=2, spare=1)
        stream = GroupStream({"only": source})
        assert numbers(await stream.next(1, 0)) == [1, 2]
        assert engine.aborted == ["group 0"] and not engine.running
        await stream.close()

    run_in_virtual_time(main())


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 4),
    spare=st.integers(1, 4),
    patience=st.sampled_from([0.0, 0.5, 3.0, 100.0]),
    draw=st.integers(0, 2**16),
)
def test_every_group_is_trained_once_or_counted_whatever_finishes_when(
    size: int, spare: int, patience: float, draw: int
) -> None:
    def drawn(number: int, kind: str) -> random.Random:
        return random.Random(f"{draw} {number} {kind}")

    played = Played(
        lambda number: drawn(number, "seconds").lognormvariate(0, 1.5),
        lambda number: drawn(number, "fate").choice(["good", "good", "good", "dull", "fail"]),
    )

    async def main() -> tuple[list[int], Counter[str]]:
        options = {"groups_per_step": size, "spare": spare, "keep": not_dull, "most": 10 * (size + spare)}
        stream = GroupStream({"only": played.source(**options)}, patience=patience)
        trained: list[int] = []
        for step in range(1, 6):
            rollout = await stream.next(step, step - 1)
            assert len(played.begun) == len(played.finished) + len(played.cancelled)
            assert len(rollout.groups) <= size and sum(rollout.late.values()) <= spare
            trained += numbers(rollout)
            stream.trained()
        assert stream.live == 0 and stream.position("only") == len(played.begun)
        await stream.close()
        return trained, Counter(stream.counts)

    trained, counts = run_in_virtual_time(main())
    assert len(set(trained)) == len(trained) == counts["trained"]
    assert sorted(played.begun) == list(range(len(played.begun)))
    assert counts["admitted"] == sum(counts[name] for name in ("trained", "late", "filtered", "failed"))


def test_the_more_groups_a_step_goes_on_without_the_shorter_is_what_it_trains_on() -> None:
    def ruler(ratio: float, wait: float) -> over_rollout.Outcome:
        return run_in_virtual_time(over_rollout.by_length(ratio, wait, over_rollout.OF_TASK, steps=8, seed=1))

    none, some, half, patient = ruler(0.0, 0.0), ruler(0.25, 0.0), ruler(0.5, 0.0), ruler(0.5, 100.0)
    assert (none.distance, none.mean, none.late) == (0, 1, 0)
    assert 0 < some.distance < half.distance and 1 > some.mean > half.mean
    assert half.distance > 0.2 and half.mean < 0.6, "what the page says of it"
    assert patient.distance < 0.6 * half.distance and patient.late == half.late == 0.5
    assert half.seconds < patient.seconds < none.seconds


def test_numbers_that_make_no_sense_are_refused() -> None:
    played = Played(lambda number: 1.0)
    with pytest.raises(ValueError, match="spare=-1: must be at least 0"):
        played.source(groups_per_step=2, spare=-1)
    with pytest.raises(ValueError, match=r"spare=1: with a ratio of 1.0 there are groups ahead already"):
        GroupStream({"only": played.source(groups_per_step=2, spare=1)}, ratio=1.0)
    with pytest.raises(ValueError, match="additional=1, spare=1"):
        Admission(2, 0.0, None, 4, additional=1, spare=1)
    with pytest.raises(ValueError, match=r"patience=-1.0: must be at least 0 seconds"):
        GroupStream({"only": played.source(groups_per_step=2)}, patience=-1.0)
