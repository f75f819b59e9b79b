"""Discounted sums over the tokens of a mask equal a loop, whatever the mask looks like."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from roll.algorithms.masking import Blanking
from roll.algorithms.scan import reverse_scan, sums_after


def loop(x: Tensor, mask: Tensor, decay: float) -> Tensor:
    result = torch.zeros_like(x)
    for row in range(x.shape[0]):
        following = 0.0
        for t in reversed(range(x.shape[1])):
            result[row, t] = following
            if mask[row, t]:
                following = float(x[row, t]) + decay * following
    return result


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.97, 1.0])
@pytest.mark.parametrize("length", [1, 31, 32, 33, 200])
def test_tokens_outside_the_mask_are_no_steps(length: int, decay: float) -> None:
    noise = torch.Generator().manual_seed(length)
    x = torch.randn(9, length, generator=noise, dtype=torch.float64)
    # From almost none to almost all; a row with none, a row with all, and one in whole blocks.
    mask = torch.rand(9, length, generator=noise) < torch.linspace(0.05, 0.95, 9).unsqueeze(1)
    mask[0], mask[1] = False, True
    mask[2] = torch.arange(length) // 32 % 2 == 0
    spoilt = x.masked_fill(~mask, torch.nan)
    found = sums_after(spoilt, Blanking(mask), decay)
    torch.testing.assert_close(found[mask], loop(x, mask, decay)[mask], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("decay", [0.0, 0.97, 1.0])
def test_without_a_mask_every_token_is_a_step(decay: float) -> None:
    x = torch.randn(3, 100, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = x + decay * loop(x, torch.ones(3, 100, dtype=torch.bool), decay)
    torch.testing.assert_close(reverse_scan(x, decay), expected, rtol=1e-12, atol=1e-12)


def test_half_precision_is_summed_in_single() -> None:
    x = torch.ones(1, 1000, dtype=torch.bfloat16)
    assert reverse_scan(x, 1.0)[0, 0] == 1000
