"""Trajectories to training samples: flat token lists with mask, log-probabilities and rewards. No tensors here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from roll.generation.pictures import Picture
from roll.trajectories.model import Trajectory, Turn

NO_TURN = -1
"""``turn_index`` of tokens that the policy did not sample."""

_MODES = ("trajectory", "step")


@dataclass(slots=True)
class Runs:
    """Entries of tokens, where long stretches of them are equal.

    Attributes:
        values: The entry of each stretch.
        counts: How many tokens have it.
    """

    values: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, value: float, count: int) -> None:
        """Add a stretch."""
        self.values.append(value)
        self.counts.append(count)

    def __len__(self) -> int:
        return sum(self.counts)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return an entry for each token."""
        return np.repeat(np.array(self.values, dtype), self.counts)


@dataclass(slots=True)
class Sample:
    """One sequence to train on. Lists have one entry per token, aligned to the token they describe.

    Attributes:
        trajectory: Which trajectory it comes from (``group/episode``).
        tag: The environment tag.
        group_id: The trajectory's group.
        first_turn: Index of the first turn whose completion is trained.
        last_turn: Index of the last.
        policy_version: Oldest and newest weights that sampled it.
        token_ids: Prompts and completions as the engine saw and sampled them.
        response_mask: 1 on sampled tokens that are trained here, else 0.
        logprobs: The sampler's log-probability of trained tokens, else 0.
        rewards: The turn's reward on the last token of its completion, else 0.
        turn_index: The turn of trained tokens, else :data:`NO_TURN`.
        state_hash: Hash of the observation that a trained token answers, else 0; equal states of a group compare.
        pictures: What placeholder tokens stand for, in the order of their places; no entries per token.
    """

    trajectory: str
    tag: str
    group_id: str
    first_turn: int
    last_turn: int
    policy_version: tuple[int, int]
    token_ids: list[int] = field(default_factory=list)
    response_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    turn_index: list[int] = field(default_factory=list)
    state_hash: list[int] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.token_ids)


def is_trainable(trajectory: Trajectory) -> bool:
    """Whether the trajectory has turns and none of it broke.

    One that failed half-way is left out as a whole: its score is unknown, and its complete turns would be credited
    without what they led to.
    """
    return bool(trajectory.turns) and not trajectory.status.is_error


def outline(sample: Sample) -> Sample:
    """Return a sample without what it has for each token: a batch has that."""
    return replace(
        sample, token_ids=[], response_mask=[], logprobs=[], rewards=[], turn_index=[], state_hash=[], pictures=[]
    )


def samples_from(
    trajectory: Trajectory, mode: Literal["trajectory", "step"] = "trajectory", max_length: int | None = None
) -> list[Sample]:
    """Turn a trajectory into samples.

    Args:
        trajectory: Its turns must be complete; see :func:`is_trainable`. Where they have arrays of tokens, samples have
            arrays too, and :class:`Runs`.
        mode: ``"trajectory"``: one sample for each run of turns whose tokens extend one another (one, unless the
            history was rendered anew on the way). ``"step"``: one per turn, with the whole prompt of that turn.
        max_length: Longest sample allowed, in tokens.

    Returns:
        The samples in order of turns; none for a trajectory without turns.

    Raises:
        ValueError: If the mode is unknown, a turn has no completion or not one log-probability per token, or a sample
            is longer than ``max_length``.
    """
    if mode not in _MODES:
        raise ValueError(f"mode={mode!r}: use one of {', '.join(_MODES)}")
    samples: list[Sample] = []
    for first, run in _runs(trajectory.turns):
        if mode == "trajectory":
            samples.append(_join(trajectory, first, run, trained_from=0))
        else:
            samples += [_join(trajectory, first, run[: i + 1], trained_from=i) for i in range(len(run))]
    for sample in samples:
        if max_length is not None and len(sample) > max_length:
            raise ValueError(
                f"Trajectory {sample.trajectory} ({sample.tag}), turns {sample.first_turn} to {sample.last_turn}: "
                f"{len(sample)} tokens exceed the limit of {max_length}. Cutting would lose rewards: raise "
                "sequence_length, or sample with a lower one."
            )
    return samples


def _runs(turns: list[Turn]) -> Iterator[tuple[int, list[Turn]]]:
    """Yield stretches of turns whose tokens extend one another, each with the index of its first turn."""
    starts = [index for index, turn in enumerate(turns) if index == 0 or turn.starts_sample]
    for start, end in pairwise([*starts, len(turns)]):
        yield start, turns[start:end]


def _join(trajectory: Trajectory, first: int, run: list[Turn], trained_from: int) -> Sample:
    """Concatenate the turns of ``run``; those before ``trained_from`` are context only."""
    trained = run[trained_from:]
    sample = Sample(
        trajectory=f"{trajectory.group_id}/{trajectory.episode}",
        tag=trajectory.tag,
        group_id=trajectory.group_id,
        first_turn=first + trained_from,
        last_turn=first + len(run) - 1,
        policy_version=(
            min(turn.policy_version[0] for turn in trained),
            max(turn.policy_version[1] for turn in trained),
        ),
    )
    if isinstance(run[0].completion_ids, np.ndarray):
        return _join_arrays(sample, first, run, trained_from)
    for offset, turn in enumerate(run):
        _check(sample, first + offset, turn)
        sample.pictures += [picture.moved(len(sample)) for picture in turn.pictures]
        _append(sample, turn.prompt_ids)
        if offset < trained_from:
            _append(sample, turn.completion_ids)
        else:
            _append_trained(sample, turn, first + offset)
    return sample


def _join_arrays(sample: Sample, first: int, run: list[Turn], trained_from: int) -> Sample:
    """Do the same with turns that have arrays in place of lists; the sample has arrays and runs then."""
    pieces: list[Any] = []
    log_probs: list[Any] = []
    mask, turns, hashes, rewards = Runs(), Runs(), Runs(), Runs()
    length = 0
    for offset, turn in enumerate(run):
        _check(sample, first + offset, turn)
        sample.pictures += [picture.moved(length) for picture in turn.pictures]
        is_trained = offset >= trained_from
        shown, sampled = len(turn.prompt_ids), len(turn.completion_ids)
        length += shown + sampled
        pieces += [turn.prompt_ids, turn.completion_ids]
        log_probs += [np.zeros(shown, np.float32), turn.logprobs if is_trained else np.zeros(sampled, np.float32)]
        for column, value, other in (
            (mask, True, False),
            (turns, first + offset, NO_TURN),
            (hashes, _hash(turn.observation), 0),
        ):
            column.add(other, shown)
            column.add(value if is_trained else other, sampled)
        rewards.add(0.0, shown + sampled - 1)
        rewards.add(turn.reward if is_trained else 0.0, 1)
    arrays: dict[str, Any] = {"token_ids": np.concatenate(pieces), "response_mask": mask, "turn_index": turns}
    arrays |= {"logprobs": np.concatenate(log_probs, dtype=np.float32), "rewards": rewards, "state_hash": hashes}
    return replace(sample, **arrays)


def _append(sample: Sample, ids: list[int]) -> None:
    count = len(ids)
    sample.token_ids += ids
    sample.response_mask += [0] * count
    sample.logprobs += [0.0] * count
    sample.rewards += [0.0] * count
    sample.turn_index += [NO_TURN] * count
    sample.state_hash += [0] * count


def _append_trained(sample: Sample, turn: Turn, index: int) -> None:
    count = len(turn.completion_ids)
    sample.token_ids += turn.completion_ids
    sample.response_mask += [1] * count
    sample.logprobs += turn.logprobs
    sample.rewards += [0.0] * (count - 1)
    sample.rewards.append(turn.reward)
    sample.turn_index += [index] * count
    sample.state_hash += [_hash(turn.observation)] * count


def _hash(observation: str) -> int:
    """Return 63 bits that are the same in every process."""
    return int.from_bytes(hashlib.blake2b(observation.encode(), digest_size=8).digest(), "big") >> 1


def _check(sample: Sample, index: int, turn: Turn) -> None:
    if not len(turn.completion_ids) or len(turn.completion_ids) != len(turn.logprobs):
        raise ValueError(
            f"Trajectory {sample.trajectory} ({sample.tag}), turn {index}: {len(turn.completion_ids)} completion "
            f"tokens and {len(turn.logprobs)} log-probabilities; it needs at least one token, and as many of each."
        )
