"""What stays of episodes in memory, and how fast they are."""

from __future__ import annotations

import gc
import time
import tracemalloc
from typing import Any

from roll.certificates.conditions import set_shared_generators
from roll.certificates.episodes import Note, Player
from roll.certificates.target import Source


def memory(note: Note, source: Source, episodes: int, longest: int) -> dict[str, Any]:
    """Play the same episodes over and over, and see what stays."""

    def once() -> int:
        steps = 0
        for index in range(episodes):
            set_shared_generators(1)
            steps += len(Player(source.make, index % 4, longest=longest, note=note).play().steps)
        gc.collect()
        return steps

    once()
    before_process = _resident()
    tracemalloc.start()
    once()
    first, _ = tracemalloc.get_traced_memory()
    once()
    second, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    env = source.make()
    del env
    began = time.perf_counter()
    steps = once()
    return {
        "kept_per_episode": (second - first) / episodes,
        "resident_per_episode": (_resident() - before_process) / (3 * episodes),
        "steps_per_second": steps / (time.perf_counter() - began),
        "process_mib": _resident() / (1 << 20),
    }


def _resident() -> int:
    """Return the bytes of this process in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096
