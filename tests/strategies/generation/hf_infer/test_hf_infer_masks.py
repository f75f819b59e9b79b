"""Masks of the engine: the same as those computed from positions one by one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.strategies.generation.hf_infer.causal_masks import CausalMasks


def visible(position: int, key: int, window: int | None) -> bool:
    return key <= position and (window is None or key > position - window)


@settings(max_examples=40, deadline=None)
@given(
    positions=st.lists(st.lists(st.integers(0, 699), min_size=2, max_size=2), min_size=1, max_size=4),
    spare=st.integers(0, 5),
    window=st.none() | st.integers(1, 800),
)
def test_a_query_sees_its_own_key_and_those_before_it_within_the_window(
    positions: list[list[int]], spare: int, window: int | None
) -> None:
    keys = max(map(max, positions)) + 1 + spare
    mask = CausalMasks().mask(torch.tensor(positions), keys, window, torch.float32)
    assert mask.shape == (len(positions), 1, 2, keys)
    expected = [[[visible(p, k, window) for k in range(keys)] for p in row] for row in positions]
    assert torch.equal(mask[:, 0] == 0.0, torch.tensor(expected))
    assert torch.equal(mask[:, 0] == float("-inf"), ~torch.tensor(expected))


@pytest.mark.parametrize("window", [None, 3])
def test_masks_stay_right_when_sequences_outgrow_the_first_ones(window: int | None) -> None:
    masks = CausalMasks()
    short = masks.mask(torch.tensor([[4]]), 8, window, torch.float32).clone()
    longer = masks.mask(torch.tensor([[4], [1000]]), 1001, window, torch.float32)
    again = masks.mask(torch.tensor([[4]]), 8, window, torch.float32)
    assert torch.equal(short, again) and torch.equal(longer[0, ..., :8], short[0])
    assert int((longer[1] == 0).sum()) == (1001 if window is None else window)


def test_the_type_of_a_mask_is_the_one_asked_for() -> None:
    masks = CausalMasks()
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        assert masks.mask(torch.tensor([[2]]), 4, None, dtype).dtype is dtype
