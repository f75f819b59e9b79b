"""The cache of slots: all of it at once where that is little, and as much in each layer as its owner says."""

from __future__ import annotations

import pytest
import torch

from roll.strategies.generation.hf_infer import slot_cache
from roll.strategies.generation.hf_infer.slot_cache import SlotCache

SLOTS, LENGTH = 16, 256


def states(width: int) -> torch.Tensor:
    return torch.zeros(1, 2, 5, width)


@pytest.mark.parametrize("widths", [(32, 32), (64, 16), (16, 64)])
@pytest.mark.parametrize("most", [0, 4 << 20, 1 << 30])
def test_every_layer_has_the_room_that_its_owner_says(
    widths: tuple[int, int], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the whole cache would be little by the measure of one layer, and much by that of another."""
    monkeypatch.setattr(slot_cache, "_WHOLE_BYTES", most)
    cache = SlotCache(2, SLOTS, LENGTH)
    for slots, length in ((1, 5), (9, 5), (9, 100), (SLOTS, LENGTH)):
        cache.reserve(slots, length)
        for layer, width in zip(cache.slot_layers, widths, strict=True):
            if not layer.is_initialized:
                layer.lazy_initialization(states(width), states(width))
        for layer, width in zip(cache.slot_layers, widths, strict=True):
            assert layer.keys is not None and layer.values is not None
            for tensor in (layer.keys, layer.values):
                assert tensor.shape == (cache.slots, 2, cache.length, width) and not tensor.any()
                tensor[slots - 1, :, length - 1] = 0.0  # there is room for it
    assert (cache.slots, cache.length) == (SLOTS, LENGTH)
