"""Sealed episodes: an outline that reads like the whole, and the whole again, bit for bit."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.generation.pictures import Picture
from roll.pipelines.learning.batches import training_batch
from roll.pipelines.reporting.metrics import rollout_metrics
from roll.schedulers.staleness import staleness_metrics
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup, Turn
from roll.trajectories.sealed import Contents, SealedTrajectory, opened, seal
from roll.trajectories.shelf import Shelf

SHELF: dict[int, Contents] = {}
"""Where contents lie in these tests."""
FETCHED: list[int] = []
"""What was fetched."""


@dataclass(frozen=True)
class Place:
    """A place on the shelf."""

    number: int

    def open(self) -> Contents:
        FETCHED.append(self.number)
        return SHELF[self.number]


async def put(contents: Contents) -> Place:
    SHELF[len(SHELF)] = contents
    return Place(len(SHELF) - 1)


def sealed(trajectory: Trajectory) -> Trajectory:
    FETCHED.clear()
    return asyncio.run(seal(trajectory, put))


ids = st.lists(st.integers(0, 2**40), max_size=4)
words = st.text(max_size=5)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    completion = draw(ids.filter(bool))
    log_probs = st.floats(-50, 0, allow_nan=False)
    return Turn(
        prompt_ids=draw(ids),
        completion_ids=completion,
        logprobs=draw(st.lists(log_probs, min_size=len(completion), max_size=len(completion))),
        policy_version=(1, 2),
        observation=draw(words),
        response=draw(words),
        action=draw(st.none() | words),
        reward=draw(st.floats(-1, 1)),
        reward_parts={"env": 0.5},
        metrics={"moves": 1.0},
        frame=draw(st.none() | words),
        seconds={"env": 0.1},
        starts_sample=draw(st.booleans()),
        messages=[{"role": "tool", "content": draw(words)}],
        pictures=[Picture(0, 1, 1, b"png")],
    )


@st.composite
def episodes(draw: st.DrawFn, beside: bool = True) -> Trajectory:
    return Trajectory(
        tag="Game",
        group_id="g",
        episode=draw(st.integers(0, 3)),
        seed=7,
        turns=draw(st.lists(turns(), max_size=3)),
        status=draw(st.sampled_from([Status.COMPLETED, Status.ERROR_ENV])),
        score=draw(st.none() | st.floats(-1, 1)),
        final_observation=draw(words),
        final_frame=draw(st.none() | words),
        metrics={"success": 1.0},
        messages=[{"role": "user", "content": draw(words)}],
        beside=draw(st.lists(episodes(beside=False), max_size=1)) if beside else [],
    )


@given(episodes())
def test_what_was_sealed_opens_as_it_was(episode: Trajectory) -> None:
    again = opened(sealed(episode))
    assert type(again) is Trajectory and all(type(turn) is Turn for turn in again.turns)
    assert again == episode
    for turn in again.turns:
        assert all(type(token) is int for token in turn.prompt_ids + turn.completion_ids)
        assert all(type(number) is float for number in turn.logprobs)


@given(episodes())
def test_an_outline_reads_like_the_whole(episode: Trajectory) -> None:
    outline = pickle.loads(pickle.dumps(sealed(episode)))
    assert isinstance(outline, SealedTrajectory) and not FETCHED
    for name in ("tag", "score", "status", "metrics", "total_tokens", "completion_tokens", "success"):
        assert getattr(outline, name) == getattr(episode, name)
    assert not FETCHED, "counts and scores are here"
    assert outline.conversation == episode.conversation
    assert outline.final_observation == episode.final_observation and outline.final_frame == episode.final_frame
    for mine, whole in zip(outline.turns, episode.turns, strict=True):
        assert list(mine.completion_ids) == whole.completion_ids and mine.logprobs == whole.logprobs
        assert mine.prompt_ids[:1] == whole.prompt_ids[:1]
        assert mine.action == whole.action and mine.pictures == whole.pictures and mine.frame == whole.frame


def episode(number: int, length: int = 3) -> Trajectory:
    turn = Turn(list(range(length)), [5, 6], [-0.5, -0.25], (1, 1), "board", "left", reward=1.0)
    return Trajectory("Game", "g", number, 7, turns=[turn, replace(turn, reward=2.0)], score=3.0)


def test_an_outline_is_small_however_long_the_episode_is() -> None:
    short, long = sealed(episode(0, 10)), sealed(episode(0, 100_000))
    assert abs(len(pickle.dumps(long)) - len(pickle.dumps(short))) < 50
    assert len(pickle.dumps(long)) < 1_000


def test_what_the_driver_reports_of_a_rollout_fetches_nothing() -> None:
    whole = [TrajectoryGroup("g", "Game", [episode(0), episode(1)])]
    outlines = [replace(whole[0], trajectories=[sealed(each) for each in whole[0].trajectories])]
    FETCHED.clear()
    assert rollout_metrics(outlines) == rollout_metrics(whole)
    assert staleness_metrics(outlines, 3) == staleness_metrics(whole, 3)
    assert not FETCHED


def test_rewards_that_were_given_since_then_count() -> None:
    outline = sealed(episode(0))
    outline.score, outline.turns[-1].reward = 9.0, 7.0
    outline.turns[-1].reward_parts["judge"] = 5.0
    again = opened(outline)
    assert again.score == 9.0 and again.turns[-1].reward == 7.0 and again.turns[-1].reward_parts == {"judge": 5.0}


def test_texts_of_an_outline_cannot_be_changed_unseen() -> None:
    with pytest.raises(AttributeError, match="response of a sealed episode lies elsewhere"):
        sealed(episode(0)).turns[0].response = "right"


@pytest.mark.parametrize("mode", ["trajectory", "step"])
@pytest.mark.parametrize("as_arrays", [False, True])
def test_a_batch_of_sealed_episodes_is_that_of_the_whole_ones(mode: Any, as_arrays: bool) -> None:
    whole = [TrajectoryGroup("g", "Game", [episode(0, 3), episode(1, 5)])]
    outlines = [replace(whole[0], trajectories=[sealed(each) for each in whole[0].trajectories])]
    options = {"max_length": 64, "pad_token_id": 0}
    one = training_batch(whole, mode, **options)
    other = training_batch(outlines, mode, **options, open_member=partial(opened, as_arrays=as_arrays))
    assert one.tensors.keys() == other.tensors.keys()
    for name, column in one.tensors.items():
        assert column.dtype == other.tensors[name].dtype and column.equal(other.tensors[name]), name
    assert (one.scores, one.truncated, one.baselines) == (other.scores, other.truncated, other.baselines)
    assert [sample.trajectory for sample in one.samples] == [sample.trajectory for sample in other.samples]
    assert not any(sample.token_ids for sample in other.samples), "the batch has them"


def test_numbers_lie_in_the_narrowest_type_that_has_them() -> None:
    fine = replace(episode(0), turns=[Turn([1], [2**40], [-0.1])])
    sealed(fine)
    contents = SHELF[len(SHELF) - 1]
    assert contents.tokens["prompt_ids"].dtype == np.int32
    assert contents.tokens["completion_ids"].dtype == np.int64
    assert contents.tokens["logprobs"].dtype == np.float64
    sealed(episode(0))
    assert SHELF[len(SHELF) - 1].tokens["logprobs"].dtype == np.float32


def test_contents_stay_while_somebody_has_word_of_them_or_may_get_it() -> None:
    shelf, contents = Shelf(), Contents({}, [], {})
    first, second = shelf.put(contents), shelf.put(contents)
    shelf.keep_only([])
    assert shelf.get([first, second]) == [contents, contents], "they came since the last time"
    third = shelf.put(contents)
    shelf.keep_only([second])
    assert len(shelf) == 2 and shelf.get([second, third])
    with pytest.raises(KeyError):
        shelf.get([first])
    shelf.keep_only([])
    assert len(shelf) == 0


def test_a_shelf_that_is_tidied_again_at_once_drops_nothing() -> None:
    shelf = Shelf()
    numbers = [shelf.put(Contents({}, [], {})) for _ in range(2)]
    shelf.keep_only(numbers[:1], apart=60)
    for wanted in (numbers[:1], []):
        shelf.keep_only(wanted, apart=60)
    assert len(shelf) == 2, "word of the second may be on its way"
    shelf.keep_only(numbers[:1], apart=0)
    assert len(shelf.get(numbers[:1])) == 1 and len(shelf) == 1
