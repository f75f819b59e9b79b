"""Attention over slots, with heads that share keys: that of doubles, whatever is folded or repeated for speed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roll.strategies.generation.hf_infer.causal_masks import CausalMasks
from roll.strategies.generation.hf_infer.slot_cache import _attention

SIZES = st.integers(1, 4)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)], ids=str)
@given(rows=SIZES, kept=SIZES, shared=SIZES, queries=SIZES, spare=st.integers(0, 40), scaling=st.none() | st.just(0.3))
def test_it_is_that_of_doubles(
    dtype: torch.dtype, error: float, rows: int, kept: int, shared: int, queries: int, spare: int, scaling: float | None
) -> None:
    noise = torch.Generator().manual_seed(rows)
    size, slots = 8, queries + spare
    flat = torch.randn(rows, queries, kept * shared, size, generator=noise).to(dtype)
    query = flat.transpose(1, 2)  # as the engine has it
    keys, values = (torch.randn(rows, kept, slots + 3, size, generator=noise).to(dtype)[:, :, :slots] for _ in range(2))
    positions = torch.randint(0, slots, (rows, queries), generator=noise)
    mask = CausalMasks().mask(positions, slots, None, dtype)
    found = _attention(query, keys, values, mask, scaling)

    expected = torch.empty(rows, kept * shared, queries, size, dtype=torch.float64)
    for row in range(rows):
        for head in range(kept * shared):
            for number in range(queries):
                seen = slice(0, int(positions[row, number]) + 1)
                own, their = query[row, head, number].double(), keys[row, head // shared, seen].double()
                weights = (their @ own * (size**-0.5 if scaling is None else scaling)).softmax(0)
                expected[row, head, number] = weights @ values[row, head // shared, seen].double()
    assert found.dtype == dtype and found.shape == expected.shape
    assert torch.allclose(found.double(), expected, atol=error * (1 + expected.abs().max().item()))
