"""Which episodes of an evaluation get a review page."""

from __future__ import annotations

from roll.pipelines.reporting.review import EPISODES_SHOWN, shown_episodes
from roll.trajectories.model import Trajectory, TrajectoryGroup


def groups(count: int, size: int) -> list[TrajectoryGroup]:
    return [TrajectoryGroup(str(n), "a", [Trajectory("a", str(n), k, 0) for k in range(size)]) for n in range(count)]


def test_of_few_groups_all_members_are_shown_until_there_are_enough() -> None:
    shown = [(t.group_id, t.episode) for t in shown_episodes(groups(3, 2))]
    assert shown == [("0", 0), ("0", 1), ("1", 0), ("1", 1), ("2", 0), ("2", 1)]
    assert len(shown_episodes(groups(5, 8))) == EPISODES_SHOWN


def test_of_many_groups_the_same_ones_are_shown_every_time_whatever_turns_round_in_the_data() -> None:
    first, again = ([int(t.group_id) for t in shown_episodes(groups(384, 4))] for _ in range(2))
    assert first == again == sorted(set(first)) and len(first) == EPISODES_SHOWN
    assert {number % 4 for number in first} == {0, 1, 2, 3}
