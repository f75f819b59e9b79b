"""Replacement of groups without variance by groups of further levels."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from roll.pipelines.sampling.filters import GroupSearch
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup


def group(number: int, tag: str, scores: list[float]) -> TrajectoryGroup:
    members = [Trajectory(tag, str(number), k, 0, status=Status.COMPLETED, score=s) for k, s in enumerate(scores)]
    return TrajectoryGroup(str(number), tag, members)


def run(search: GroupSearch, varied: list[bool]) -> list[int]:
    """Play groups numbered from 0 on, whose scores differ where ``varied`` says; returns those of the step."""
    number = 0
    while missing := search.missing():
        played = []
        for tag, count in missing:
            for _ in range(count):
                differs = varied[number % len(varied)]
                played.append(group(number, tag, [0.0, 1.0] if differs else [1.0, 1.0]))
                number += 1
        search.add(played)
    return [int(found.group_id) for found in search.groups()]


def test_without_replacement_the_first_round_is_taken_as_it_is() -> None:
    search = GroupSearch([("a", 2), ("b", 1)], most=None)
    assert run(search, [False]) == [0, 1, 2]
    assert search.metrics() == {} and search.warning == ""


@given(varied=st.lists(st.booleans(), min_size=3, max_size=12).filter(any), wanted=st.integers(1, 5))
def test_replacements_are_the_next_levels_in_order(varied: list[bool], wanted: int) -> None:
    search = GroupSearch([("a", wanted)], most=100)
    found = run(search, varied)
    different = [number for number in range(200) if varied[number % len(varied)]]
    assert found == different[:wanted]
    assert search.metrics()["rollout/groups_filtered"] >= found[-1] + 1 - wanted


def test_every_tag_gets_its_own_number() -> None:
    search = GroupSearch([("a", 2), ("b", 2)], most=50)
    run(search, [True, False, False])
    assert [found.tag for found in search.groups()].count("a") == 2
    assert len(search.groups()) == 4


def test_a_search_that_finds_too_little_says_so_and_ends() -> None:
    search = GroupSearch([("a", 4)], most=6)
    assert len(run(search, [True, False, False])) == 2
    assert "only 2 of 6 groups" in search.warning


def test_where_no_scores_differ_the_first_round_is_taken_with_a_warning() -> None:
    search = GroupSearch([("a", 3)], most=7)
    assert run(search, [False]) == [0, 1, 2]
    assert "none of 7 groups" in search.warning
