"""Which groups are worth training on, and what a step takes where others are replaced."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from roll.pipelines.sampling.filters import has_variance
from roll.schedulers.group_stream import GroupStream, StepGroups
from roll.schedulers.source_share import GroupSource
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup


def group(number: int, tag: str, scores: list[float]) -> TrajectoryGroup:
    members = [Trajectory(tag, str(number), k, 0, status=Status.COMPLETED, score=s) for k, s in enumerate(scores)]
    return TrajectoryGroup(str(number), tag, members)


def step(wanted: dict[str, int], most: int | None, varied: list[bool]) -> StepGroups:
    """Return the groups of a step; the scores of those differ whose numbers ``varied`` says."""

    def source(tag: str, count: int) -> GroupSource[int]:
        async def play(number: int) -> TrajectoryGroup:
            await asyncio.sleep(0)
            return group(number, tag, [0.0, 1.0] if varied[number % len(varied)] else [1.0, 1.0])

        keep = None if most is None else has_variance
        return GroupSource(
            tasks=lambda n: n,
            play_group=play,
            groups_per_step=count,
            keep=keep,
            most=most,
            in_rounds=True,
            replace_failed=False,
        )

    return asyncio.run(GroupStream({tag: source(tag, count) for tag, count in wanted.items()}).next(1, 0))


def numbers(found: StepGroups) -> list[int]:
    return [int(group.group_id) for group in found.groups]


def test_without_replacement_the_first_round_is_taken_as_it_is() -> None:
    found = step({"a": 2, "b": 1}, None, [False])
    assert numbers(found) == [0, 1, 0] and [group.tag for group in found.groups] == ["a", "a", "b"]
    assert found.notes == [] and not found.dropped


@given(varied=st.lists(st.booleans(), min_size=3, max_size=12).filter(any), wanted=st.integers(1, 5))
@settings(max_examples=50, deadline=None)
def test_replacements_are_the_next_levels_in_order(varied: list[bool], wanted: int) -> None:
    found = step({"a": wanted}, 100, varied)
    different = [number for number in range(200) if varied[number % len(varied)]]
    assert numbers(found) == different[:wanted]
    assert found.metrics["rollout/groups_filtered"] == numbers(found)[-1] + 1 - wanted


def test_every_tag_gets_its_own_number() -> None:
    found = step({"a": 2, "b": 2}, 50, [True, False, False])
    assert [group.tag for group in found.groups] == ["a", "a", "b", "b"]


def test_a_search_that_finds_too_little_says_so_and_ends() -> None:
    found = step({"a": 4}, 6, [True, False, False])
    assert len(found.groups) == 2
    assert "only 2 of 6 groups" in found.notes[0]


def test_where_no_scores_differ_the_first_round_is_taken_with_a_warning() -> None:
    found = step({"a": 3}, 7, [False])
    assert numbers(found) == [0, 1, 2] and found.is_fallback
    assert "none of 7 groups" in found.notes[0]


def test_a_tag_without_variance_gives_nothing_where_another_has_some() -> None:
    async def play(name: str) -> TrajectoryGroup:
        await asyncio.sleep(0)
        return group(int(name[1:]), name[0], [0.0, 1.0] if name[0] == "a" else [1.0, 1.0])

    def source(tag: str) -> GroupSource[str]:
        return GroupSource(tasks=lambda n: f"{tag}{n}", play_group=play, groups_per_step=2, keep=has_variance)

    both = GroupStream({tag: source(tag) for tag in "ab"})

    async def main() -> StepGroups:
        found = await both.next(1, 0)
        both.trained()
        return found

    found = asyncio.run(main())
    assert [group.tag for group in found.groups] == ["a", "a"] and not found.is_fallback
    assert found.metrics["rollout/groups_filtered"] == 4 and found.consumed == 6
    assert both.counts == {"admitted": 6, "trained": 2, "filtered": 4}
    assert found.notes == ["b: none of 4 groups passed the filter, so the step has none of them."]
