"""Keys of the sampling noise."""

from __future__ import annotations

import hashlib
from typing import Final

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15


def generation_seed(run_seed: int, group_id: str, episode: int, turn: int) -> int:
    """Return the 64-bit key of the sampling noise of one turn.

    It depends on what is generated and never on when, so a run does not change with the order in which requests
    arrive, nor between processes.
    """
    key = f"{run_seed}\0{group_id}\0{episode}\0{turn}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")


def fold_seed(seed: int) -> int:
    """Reduce any integer to 64 bits such that seeds which differ in higher bits or sign stay different streams."""
    folded = _GOLDEN if seed < 0 else 0
    rest = abs(seed)
    while rest > _MASK:
        folded = _mix(folded ^ (rest & _MASK))
        rest >>= 64
    return _mix(folded) ^ rest if folded else rest


def _mix(state: int) -> int:
    """SplitMix64's next number after ``state`` (Steele, Lea & Flood 2014)."""
    state = (state + _GOLDEN) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)
