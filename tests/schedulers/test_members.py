"""Which members of a group are trained on where there are spare ones, in simulated time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

import pytest
from scheduler_fakes import trajectory
from virtual_time import run_in_virtual_time

from roll.schedulers.groups import GroupPlayer, Spares
from roll.schedulers.tasks import Task
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup


def task(size: int) -> Task[None]:
    return Task(None, "test", "g", size)


class Players:
    """Members that take as many seconds and turns as their length; some break."""

    def __init__(self, lengths: list[float], broken: set[int] | None = None) -> None:
        self.lengths, self.broken = lengths, broken or set()
        self.cancelled: list[int] = []
        self.greedy: list[int] = []
        self.counts: Counter[str] = Counter()

    async def play(self, task: Task[None], number: int, greedy: bool) -> Trajectory:
        self.greedy += [number] if greedy else []
        try:
            await asyncio.sleep(self.lengths[number])
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        status = Status.ERROR_ENV if number in self.broken else Status.COMPLETED
        return trajectory("g", number, [(0, 0)], status, score=float(number))

    def chosen(self, size: int, spares: Spares, baseline: bool = False) -> tuple[list[int], float]:
        played, seconds = self.run(size, spares, baseline)
        return [member.episode for member in played.trajectories], seconds

    def run(self, size: int, spares: Spares, baseline: bool = False) -> tuple[TrajectoryGroup, float]:
        async def main() -> tuple[TrajectoryGroup, float]:
            player = GroupPlayer(self.play, with_baselines=baseline, spares=spares)
            played = await player.play_group(task(size))
            self.counts = player.member_counts
            return played, asyncio.get_running_loop().time()

        return run_in_virtual_time(main())


def test_spares_do_not_push_out_members_that_take_longer() -> None:
    players = Players([1, 100, 2, 1, 1])
    assert players.chosen(3, Spares(2)) == ([0, 1, 2], 100)
    assert not players.cancelled and players.counts["replaced"] == 0


def test_a_group_does_not_wait_for_spares_that_it_does_not_need() -> None:
    players = Players([1, 2, 3, 100, 100])
    assert players.chosen(3, Spares(2)) == ([0, 1, 2], 3)
    assert players.cancelled == [3, 4]


def test_members_that_break_are_replaced_by_the_spare_with_the_smallest_number() -> None:
    players = Players([1, 2, 3, 9, 1], broken={1})
    assert players.chosen(3, Spares(2)) == ([0, 2, 3], 9)
    assert players.cancelled == [] and players.counts["replaced"] == 1


def test_where_too_few_are_sound_broken_ones_make_up_the_number() -> None:
    assert Players([1, 2, 3, 4, 5], broken={0, 1, 3}).chosen(3, Spares(2)) == ([0, 2, 4], 5)
    assert Players([1, 2, 3], broken={0, 1}).chosen(3, Spares()) == ([0, 1, 2], 3)


def test_stragglers_are_given_up_only_after_their_deadline_and_counted() -> None:
    late = Players([1, 1e9, 2, 3, 4])
    assert late.chosen(3, Spares(2, straggler_seconds=50)) == ([0, 2, 3], 53)
    assert late.cancelled == [1] and late.counts["stragglers"] == 1
    in_time = Players([1, 40, 2, 3, 4])
    assert in_time.chosen(3, Spares(2, straggler_seconds=50)) == ([0, 1, 2], 40)


def test_the_greedy_member_comes_after_all_others_and_is_waited_for() -> None:
    players = Players([1, 2, 3, 4, 50])
    played, seconds = players.run(3, Spares(1), baseline=True)
    assert seconds == 50 and players.greedy == [4] and played.baseline == 4.0
    assert [member.episode for member in played.trajectories] == [0, 1, 2]


@pytest.mark.parametrize("status", list(Status))
def test_only_a_greedy_member_that_is_sound_gives_a_baseline(status: Status) -> None:
    async def play(_: Task[None], number: int, greedy: bool) -> Trajectory:
        return trajectory("g", number, [(0, 0)], status if greedy else Status.COMPLETED, score=0.5)

    def baseline(with_baselines: bool) -> float | None:
        return asyncio.run(GroupPlayer(play, with_baselines=with_baselines).play_group(task(3))).baseline

    assert baseline(True) == (None if status.is_error else 0.5)
    assert baseline(False) is None


@pytest.mark.parametrize("spares", [Spares(), Spares(2)])
def test_a_member_that_raises_ends_the_group_with_its_exception(spares: Spares) -> None:
    ended: list[int] = []

    async def play(_: Task[None], number: int, greedy: bool) -> Trajectory:
        try:
            await asyncio.sleep(1 + number)
            if number == 1:
                raise MemoryError("the engine")
            return trajectory("g", number, [(0, 0)])
        finally:
            ended.append(number)

    with pytest.raises(MemoryError, match="the engine"):
        run_in_virtual_time(GroupPlayer(play, spares=spares).play_group(task(3)))
    assert sorted(ended) == list(range(3 + spares.count)), "nothing runs on"


def lengths_trained_on(groups: int, first_finished: bool = False) -> tuple[list[float], list[float]]:
    """Return the lengths of all members that were sampled, and of those trained on; a tenth breaks, of any length."""
    rng = random.Random(0)
    sampled, trained = [], []
    for _ in range(groups):
        lengths = [rng.lognormvariate(3, 1) for _ in range(12)]
        broken = {number for number in range(12) if rng.random() < 0.1}
        sampled += lengths
        if first_finished:
            sound = sorted((n for n in range(12) if n not in broken), key=lengths.__getitem__)
            trained += [lengths[n] for n in sound[:8]]
        else:
            played, _ = Players(lengths, broken).run(8, Spares(4))
            trained += [lengths[m.episode] for m in played.trajectories if not m.status.is_error]
    return sampled, trained


def largest_gap(first: list[float], second: list[float]) -> float:
    """Return the Kolmogorov-Smirnov distance: the largest difference of the two distribution functions."""
    gap = 0.0
    for length in sorted(first)[::20]:
        gap = max(gap, abs(fmean(x <= length for x in first) - fmean(x <= length for x in second)))
    return gap


@pytest.mark.long
def test_the_lengths_trained_on_are_distributed_as_those_sampled() -> None:
    sampled, trained = lengths_trained_on(groups=400)
    # Of 3,200 and 4,800 draws of one distribution the distance exceeds 0.037 once in a hundred times.
    assert largest_gap(sampled, trained) < 0.037
    assert largest_gap(*lengths_trained_on(groups=400, first_finished=True)) > 0.1, "who is first would show"


@pytest.mark.parametrize(("options", "message"), [((-1,), "redundancy=-1"), ((1, 0.0), "straggler_seconds=0.0")])
def test_numbers_that_make_no_sense_are_refused(options: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Spares(*options)  # type: ignore[arg-type]


def test_a_group_of_games_against_itself_has_as_many_members_of_each_seat() -> None:
    async def play(task: Task[None], episode: int, greedy: bool) -> Trajectory:
        seats = [
            Trajectory(task.tag, f"seat{seat}-{task.group_id}", episode, 0, initial_hash=str(seat), seat=str(seat))
            for seat in (0, 1)
        ]
        for seat in seats:
            seat.status, seat.score = Status.COMPLETED, 1.0 - 2 * int(seat.seat)
        seats[0].beside = seats[1:]
        return seats[0]

    graded: list[list[str]] = []

    async def grade(members: Sequence[Trajectory]) -> None:
        graded.append([member.seat for member in members])

    group = asyncio.run(GroupPlayer(play, spares=Spares(1), grade=grade).play_group(task(3)))
    assert [(each.seat, each.episode) for each in group.trajectories] == [
        *(("0", number) for number in range(3)),
        *(("1", number) for number in range(3)),
    ]
    assert graded == [["0"] * 3, ["1"] * 3] and not any(each.beside for each in group.trajectories)
