from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.trajectories.model import Status, Trajectory, Turn, group_of_member, seat_group
from roll.trajectories.samples import NO_TURN, Sample, is_trainable, samples_from

ids = st.lists(st.integers(0, 99), max_size=6)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    completion = draw(st.lists(st.integers(0, 99), min_size=1, max_size=6))
    version = draw(st.integers(0, 5))
    return Turn(
        prompt_ids=draw(ids),
        completion_ids=completion,
        logprobs=[-draw(st.floats(0.125, 9)) for _ in completion],
        policy_version=(version, version + draw(st.integers(0, 2))),
        reward=draw(st.floats(-2, 2)),
        starts_sample=draw(st.booleans()),
    )


def make(turn_list: list[Turn], status: Status = Status.COMPLETED) -> Trajectory:
    return Trajectory("Tag", "group", 3, seed=1, turns=turn_list, status=status)


trajectories = st.lists(turns(), max_size=6).map(make)


def prompt_before(trajectory: Trajectory, index: int) -> list[int]:
    """What the engine saw at a turn, from the definition: everything since the last new rendering."""
    start = max((i for i in range(1, index + 1) if trajectory.turns[i].starts_sample), default=0)
    prompt: list[int] = []
    for turn in trajectory.turns[start:index]:
        prompt += turn.prompt_ids + turn.completion_ids
    return prompt + trajectory.turns[index].prompt_ids


@pytest.mark.long
@given(trajectories, st.sampled_from(["trajectory", "step"]))
def test_every_sampled_token_is_trained_exactly_once_behind_the_prompt_it_was_sampled_from(
    trajectory: Trajectory, mode: str
) -> None:
    seen: list[int] = []
    for sample in samples_from(trajectory, mode):
        lists = (sample.response_mask, sample.logprobs, sample.rewards, sample.turn_index, sample.state_hash)
        assert {len(each) for each in lists} == {len(sample)}
        trained = sorted(set(sample.turn_index) - {NO_TURN})
        assert trained == list(range(sample.first_turn, sample.last_turn + 1))
        for index in trained:
            turn = trajectory.turns[index]
            first = sample.turn_index.index(index)
            span = slice(first, first + len(turn.completion_ids))
            assert sample.turn_index[span] == [index] * len(turn.completion_ids)
            assert sample.token_ids[: span.stop] == prompt_before(trajectory, index) + turn.completion_ids
            assert sample.logprobs[span] == turn.logprobs
            assert sample.rewards[span] == [0.0] * (len(turn.completion_ids) - 1) + [turn.reward]
        for position, mask in enumerate(sample.response_mask):
            assert mask == int(sample.turn_index[position] != NO_TURN)
            if not mask:
                assert sample.logprobs[position] == sample.rewards[position] == 0.0
        versions = [trajectory.turns[index].policy_version for index in trained]
        assert sample.policy_version == (min(v[0] for v in versions), max(v[1] for v in versions))
        seen += trained
    assert seen == list(range(len(trajectory.turns)))


@pytest.mark.long
@given(trajectories)
def test_a_sample_starts_where_the_history_was_rendered_anew_and_nowhere_else(trajectory: Trajectory) -> None:
    starts = [i for i, turn in enumerate(trajectory.turns) if i == 0 or turn.starts_sample]
    assert [sample.first_turn for sample in samples_from(trajectory)] == starts
    assert len(samples_from(trajectory, "step")) == len(trajectory.turns)


def two_turns() -> Trajectory:
    return make(
        [
            Turn([1, 2], [3], [-0.5], observation="here", reward=-0.1),
            Turn([4], [5, 6], [-0.25, -1.0], observation="there", reward=1.0),
        ]
    )


BROKEN = (*(status for status in Status if status.startswith("error_")), Status.ABORTED)
HERE, THERE = 2669804851967602887, 4143321601553875567


def test_equal_observations_have_equal_hashes_in_every_process() -> None:
    first, second = samples_from(two_turns(), "step")
    assert len({*first.state_hash}) == 2 and {*first.state_hash} != {*second.state_hash}
    again = samples_from(make([Turn([9], [7], [0.0], observation="there")]))[0]
    assert again.state_hash[-1] == second.state_hash[-1] != 0


def test_trajectory_mode_by_example() -> None:
    assert samples_from(two_turns()) == [
        Sample(
            "group/3",
            "Tag",
            "group",
            first_turn=0,
            last_turn=1,
            policy_version=(0, 0),
            token_ids=[1, 2, 3, 4, 5, 6],
            response_mask=[0, 0, 1, 0, 1, 1],
            logprobs=[0.0, 0.0, -0.5, 0.0, -0.25, -1.0],
            rewards=[0.0, 0.0, -0.1, 0.0, 0.0, 1.0],
            turn_index=[-1, -1, 0, -1, 1, 1],
            state_hash=[0, 0, HERE, 0, THERE, THERE],
        )
    ]


def test_step_mode_keeps_earlier_completions_as_untrained_context() -> None:
    second = samples_from(two_turns(), "step")[1]
    assert second.token_ids == [1, 2, 3, 4, 5, 6]
    assert second.response_mask == [0, 0, 0, 0, 1, 1]
    assert second.rewards == [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]


def test_samples_do_not_share_lists_with_the_trajectory() -> None:
    trajectory = two_turns()
    samples_from(trajectory)[0].token_ids.append(9)
    assert trajectory.turns[0].prompt_ids == [1, 2]
    assert trajectory.turns[1].completion_ids == [5, 6]


def test_a_sample_over_the_limit_is_an_error_that_names_it() -> None:
    assert len(samples_from(two_turns(), max_length=6)) == 1
    with pytest.raises(ValueError, match=r"group/3 \(Tag\), turns 0 to 1: 6 tokens exceed the limit of 5"):
        samples_from(two_turns(), max_length=5)


@pytest.mark.parametrize("turn", [Turn([1], [], []), Turn([1], [2, 3], [-0.5])])
def test_a_turn_without_tokens_or_log_probabilities_is_an_error(turn: Turn) -> None:
    with pytest.raises(ValueError, match="turn 0"):
        samples_from(make([turn]))


def test_an_unknown_mode_is_an_error() -> None:
    with pytest.raises(ValueError, match="trajectory, step"):
        samples_from(two_turns(), "token")  # type: ignore[arg-type]


@pytest.mark.parametrize("status", Status)
def test_only_trajectories_that_did_not_break_are_trainable(status: Status) -> None:
    trajectory = two_turns()
    trajectory.status = status
    assert is_trainable(trajectory) == (status not in BROKEN)
    assert not is_trainable(make([], status))


def test_a_group_that_gets_another_name_keeps_its_seats_apart() -> None:
    seats = [seat_group("train-0000003", seat) for seat in (0, 1)]
    renamed = [group_of_member(own, "second/train-0000003") for own in (*seats, "train-0000003")]
    assert renamed == ["seat0-second/train-0000003", "seat1-second/train-0000003", "second/train-0000003"]
