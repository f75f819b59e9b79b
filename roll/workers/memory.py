"""How much memory a worker takes."""

from __future__ import annotations

import os

import torch


def peak_memory() -> float:
    """Return the most bytes that were allocated on this process's device since the last call.

    Without a device, the bytes of main memory that the process has now.
    """
    if torch.cuda.is_available():
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return float(peak)
    try:
        with open("/proc/self/statm", encoding="ascii") as statistics:
            return float(statistics.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0.0
