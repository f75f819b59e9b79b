"""Keys of the sampling noise."""

from __future__ import annotations

import hashlib


def generation_seed(run_seed: int, group_id: str, episode: int, turn: int) -> int:
    """Return the 64-bit key of the sampling noise of one turn.

    It depends on what is generated and never on when, so a run does not change with the order in which requests
    arrive, nor between processes.
    """
    key = f"{run_seed}\0{group_id}\0{episode}\0{turn}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
