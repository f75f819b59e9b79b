"""Seeds of episodes, from the seed of a run."""

from __future__ import annotations

import zlib

import numpy as np


def env_seed(run_seed: int, tag: str, group: int, episode: int) -> int:
    """Return the environment seed of one episode.

    Built on ``numpy.random.SeedSequence``, so that neighbouring runs, groups and episodes get unrelated seeds, and on
    CRC-32 of the tag instead of ``hash()``, so that it is the same in every process. Members of a group must share
    their seed: pass the same ``group`` and ``episode`` for all of them.

    Args:
        run_seed: Seed of the run, at least 0.
        tag: Name of the environment tag.
        group: Index of the group, at least 0.
        episode: Index of the episode of that group, at least 0.

    Returns:
        A seed in ``[0, 2**63)``, valid for ``env.reset(seed=...)``.

    Raises:
        ValueError: If a number is negative.
    """
    for name, value in (("run_seed", run_seed), ("group", group), ("episode", episode)):
        if value < 0:
            raise ValueError(f"env_seed: {name} is {value}; seeds and indices start at 0")
    sequence = np.random.SeedSequence([run_seed, zlib.crc32(tag.encode()), group, episode])
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
