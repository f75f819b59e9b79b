"""What an engine that samples keeps on a device: weights, and keys and values of the tokens before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from roll.config.strategies import STRATEGIES
from roll.planning.shapes import ModelShape

BLOCK: Final = 16
"""Tokens of a block of vLLM's and SGLang's caches."""
_SHARE: Final = 0.9
"""Of the device, where no ``gpu_memory_utilization`` is given."""
_OVERHEAD: Final = 1.5 * 2**30
"""CUDA context, graphs and kernels' work space of an engine, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine of one replica.

    Attributes:
        strategy: Its strategy.
        shape: Its model.
        tensor: Devices that share every matrix.
        pipeline: Devices that share the layers.
        width: Bytes of a number.
        share: Part of the device that it may have; ``None`` for an engine that takes what it needs.
        requests: Most requests at a time.
        length: Most tokens of a sequence.
    """

    strategy: str
    shape: ModelShape
    tensor: int = 1
    pipeline: int = 1
    width: int = 2
    share: float | None = _SHARE
    requests: int = 128
    length: int = 4096

    @classmethod
    def of(
        cls, strategy: str, options: Mapping[str, Any], shape: ModelShape, *, width: int, requests: int, length: int
    ) -> Engine:
        """Return the engine that a strategy's options describe."""
        names = STRATEGIES.get(strategy).parallel_sizes
        sizes = [int(options.get(key) or 1) for key in names]
        tensor, pipeline = (sizes + [1, 1])[:2]
        share = options.get("gpu_memory_utilization") or options.get("mem_fraction_static") or _SHARE
        return cls(
            strategy=strategy,
            shape=shape,
            tensor=tensor,
            pipeline=pipeline,
            width=width,
            share=float(share) if names else None,
            requests=requests,
            length=length,
        )

    @property
    def weights(self) -> int:
        """Bytes of its weights on a device."""
        return self.width * self.shape.numbers // (self.tensor * self.pipeline)

    @property
    def token_bytes(self) -> int:
        """Bytes that a token takes in the cache of a device."""
        layers = -(-self.shape.layers // self.pipeline)
        # Heads that are fewer than the devices are copied; a latent is on each of them.
        parts = min(self.tensor, self.shape.key_heads) if self.shape.cached == 2 * self.shape.keys else 1
        return self.width * layers * self.shape.cached // parts

    @property
    def longest(self) -> int:
        """Bytes that one sequence of the greatest length takes, in whole blocks."""
        blocks = -(-self.length // BLOCK)
        return blocks * BLOCK * self.token_bytes

    @property
    def wanted_cache(self) -> int:
        """Bytes with which no request ever waits for another."""
        if self.share is None:
            return slot_cache_bytes(self.shape, self.requests, self.length, self.width)
        return self.requests * self.longest

    def cache(self, device: int) -> int:
        """Return the bytes of its cache on a device with so many bytes; below one sequence it cannot start."""
        if self.share is None:
            return self.wanted_cache
        return max(0, int(self.share * device - self.weights - _OVERHEAD))

    def at_once(self, device: int) -> int:
        """Return how many sequences of the greatest length are in the cache at a time."""
        return min(self.requests, self.cache(device) // max(1, self.longest))


def slot_cache_bytes(shape: ModelShape, slots: int, length: int, width: int) -> int:
    """Return the bytes of the cache of ``hf_infer`` with so many slots of so many positions."""
    return width * shape.layers * shape.cached * slots * length
