"""Demonstrations: conversations with a teacher, as training samples for a toy policy's start."""

from __future__ import annotations

from collections.abc import Callable

from roll.trajectories.samples import NO_TURN, Sample

Encode = Callable[[str], list[int]]
"""Tokenises an answer, adding no special tokens."""


def demonstration(tag: str, token_ids: list[int], trained: list[bool]) -> Sample:
    """Return a conversation as a training sample.

    Args:
        tag: What is demonstrated.
        token_ids: The whole conversation.
        trained: Which of its tokens the policy imitates.
    """
    size = len(token_ids)
    return Sample(
        trajectory="demonstration",
        tag=tag,
        group_id="demonstrations",
        first_turn=0,
        last_turn=0,
        policy_version=(0, 0),
        token_ids=token_ids,
        response_mask=[int(each) for each in trained],
        logprobs=[0.0] * size,
        rewards=[0.0] * size,
        turn_index=[0 if each else NO_TURN for each in trained],
        state_hash=[0] * size,
    )
