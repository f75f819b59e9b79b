"""Rewards of a group as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from roll.common.registry import UnknownNameError
from roll.config.grading_keys import VerifierConfig
from roll.rewards.groups import GROUP_REWARDS, GroupRubric, distinct, register_group_reward
from roll.trajectories.model import Status, Trajectory, Turn


def member(episode: int, *responses: str, score: float | None = 1.0, status: Status = Status.COMPLETED) -> Trajectory:
    turns = [Turn([1], [2], [-1.0], (0, 0), response=response, reward=0.5) for response in responses]
    return Trajectory("tag", "g", episode, 0, "same", turns, status, score)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    with GROUP_REWARDS.restored():
        yield


def grade(members: Sequence[Trajectory], **configured: VerifierConfig) -> None:
    asyncio.run(GroupRubric(configured).grade(members))


def test_each_member_gets_its_number_on_top_of_score_and_last_turn() -> None:
    members = [member(0, "Up", "Up"), member(1, "Up", "Down"), member(2, "Up", "Up")]
    grade(members, distinct=VerifierConfig(weight=0.5))
    assert [one.score for one in members] == [1.25, 1.5, 1.25]
    assert [turn.reward for turn in members[1].turns] == [0.5, 1.0]
    assert members[1].turns[-1].reward_parts == {"distinct": 0.5} and members[1].metrics == {"distinct": 1.0}


def test_distinct_is_the_share_of_the_others_that_did_something_else() -> None:
    said = ["a", "b", "a", "c", "a"]
    expected = [sum(other != one for other in said) / 4 for one in said]
    assert distinct([member(n, one) for n, one in enumerate(said)]) == expected
    assert distinct([member(0, "alone")]) == [0.0]


def test_members_that_broke_are_neither_seen_nor_changed() -> None:
    seen: list[int] = []

    @register_group_reward("look")
    async def look(members: Sequence[Trajectory], *, bonus: float = 1.0) -> list[float]:
        await asyncio.sleep(0)
        seen.extend(one.episode for one in members)
        return [bonus * one.episode for one in members]

    broken = member(1, "x", score=None, status=Status.ERROR_ENV)
    members = [member(0, "x"), broken, member(2, "x")]
    grade(members, look=VerifierConfig(options={"bonus": 10.0}))
    assert seen == [0, 2] and [one.score for one in members] == [1.0, None, 21.0]


@pytest.mark.parametrize("wrong", ["raises", "too few"])
def test_a_function_that_fails_leaves_the_group_without_scores_and_says_why(wrong: str) -> None:
    @register_group_reward("wrong")
    def function(members: Sequence[Trajectory]) -> list[float]:
        if wrong == "raises":
            raise KeyError("nothing here")
        return [1.0]

    members = [member(0, "x"), member(1, "x")]
    grade(members, wrong=VerifierConfig())
    assert {one.status for one in members} == {Status.ERROR_REWARD} and members[0].score is None
    expected = "nothing here" if wrong == "raises" else "1 numbers for 2 members"
    assert expected in str(members[0].error) and str(members[0].error).startswith("g/0: group reward wrong")


def test_unknown_names_and_options_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="distinct"):
        GroupRubric({"distnct": VerifierConfig()})
    with pytest.raises(ValueError, match="no option 'bonus'"):
        GroupRubric({"distinct": VerifierConfig(options={"bonus": 1})})
