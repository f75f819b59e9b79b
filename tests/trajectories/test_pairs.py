"""Pairs of episodes of one start: which have one."""

from __future__ import annotations

from roll.trajectories.model import Status, Trajectory, Turn
from roll.trajectories.pairs import group_pairs, pair_row

ASKED = [{"role": "user", "content": "Plan it."}]


def episode(score: float, *responses: str, anew: bool = False) -> Trajectory:
    turns = [
        Turn([], [], [], (0, 0), response=each, observation="Go on.", messages=[*ASKED] if anew and number else [])
        for number, each in enumerate(responses)
    ]
    turns[-1].begins_anew = anew
    return Trajectory("T", "group", 0, 7, turns=turns, status=Status.COMPLETED, score=score, messages=list(ASKED))


def test_the_best_and_the_worst_of_a_group_are_a_pair_of_what_followed_the_prompt() -> None:
    (row,) = group_pairs([episode(0.5, "so-so"), episode(1.0, "good", "better"), episode(0.0, "bad")])
    assert row["prompt"] == ASKED
    assert [each["content"] for each in row["chosen"]] == ["good", "Go on.", "better"]
    assert [each["content"] for each in row["rejected"]] == ["bad"]
    assert (row["chosen_score"], row["rejected_score"]) == (1.0, 0.0)


def test_an_agent_that_began_anew_has_no_conversation_that_followed() -> None:
    branched = episode(1.0, "one", "two", anew=True)
    assert pair_row(branched, episode(0.0, "bad")) is None
    (row,) = group_pairs([branched, episode(0.5, "so-so"), episode(0.0, "bad")])
    assert row["chosen_score"] == 0.5


def test_equal_answers_and_scores_within_the_margin_are_no_pair() -> None:
    assert pair_row(episode(1.0, "same"), episode(0.0, "same")) is None
    assert not list(group_pairs([episode(0.5, "a"), episode(0.4, "b")], margin=0.2))
