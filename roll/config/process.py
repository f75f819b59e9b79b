"""What must be set in a process before numerical libraries are loaded."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from roll.common.proxies import ask_this_machine_itself

_DEFAULTS = {
    # How long an idle OpenMP thread spins before it sleeps. The library's own default is so long that on a machine
    # with anything else to do a small model runs about ten times slower; this costs nothing on an idle one.
    "GOMP_SPINCOUNT": "1000",
    # PyTorch asks for large pages for tensors from 2 MB on, on Linux. Memory that is touched for the first time, as
    # every large result is, takes a quarter of the time then.
    "THP_MEM_ALLOC_ENABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

_KEPT = 256 << 20
"""Bytes of freed memory that the C library keeps at most at the end of its heap."""

_ON_THE_HEAP = 32 << 20
"""Bytes up to which it takes memory from its heap; the most that it allows."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""What it calls the two (``malloc.h``)."""

_COLLECTOR_THRESHOLDS = (10_000, 5, 10)


def process_defaults() -> dict[str, str]:
    """Return the variables of :func:`prepare_process`, for processes that are started on other machines."""
    return dict(_DEFAULTS)


def prepare_process(system_envs: Mapping[str, str] | None = None) -> None:
    """Set environment variables for this process and its children; call it before torch is imported.

    Args:
        system_envs: Values of the configuration; they win over defaults and over what is set already.
    """
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    os.environ.update(system_envs or {})
    ask_this_machine_itself()
    settle_allocator()


@contextmanager
def collector_waits() -> Iterator[Callable[[], None]]:
    """Keep the garbage collector from looking while much is imported, all of which stays.

    While the half million objects of PyTorch and transformers came to be it would look a thousand times at them: a
    sixth of the time of the import.

    Yields:
        What lets it look again, at what is made from then on. At the end it looks at everything, as before.
    """
    looked = gc.isenabled()
    gc.disable()

    def go_on() -> None:
        gc.freeze()
        if looked:
            gc.enable()

    try:
        yield go_on
    finally:
        gc.unfreeze()
        if looked:
            gc.enable()


def settle_allocator() -> None:
    """Have the C library keep some of what is freed, for what comes next; where the user has said how, nothing.

    It would give memory back to the system after every large result and ask for it at the next one, and each page of it
    would be cleared again: three quarters of the page faults of a first evaluation, and a tenth of its time.
    """
    said = any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if said or not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries than GNU's have none
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
        mallopt(_M_MMAP_THRESHOLD, _ON_THE_HEAP)


def settle_collector() -> Callable[[], None]:
    """Tell the garbage collector that modules and models, which are there now, stay, and to look less often.

    It would walk over half a million objects again and again, 0.1 s each time. What a step makes goes with its last
    reference; to look for cycles among it every 700 objects took a tenth of the time of whatever played episodes.

    Returns:
        What undoes it.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*_COLLECTOR_THRESHOLDS)

    def undo() -> None:
        gc.unfreeze()
        gc.set_threshold(*before)

    return undo
