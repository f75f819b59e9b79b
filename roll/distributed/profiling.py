"""PyTorch's profiler in the process of a worker."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from torch.profiler import profile

BEGIN: Final = "begin_profile"
END: Final = "end_profile"

_MEMORY_ENTRIES: Final = 200_000


class _Profiler:
    """The profiler of this process, which has one: roles that share a process share it.

    PyTorch is imported when it is used: there are workers, and tests of them, without it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: profile | None = None
        self._path: Path | None = None

    def begin(self, path: Path, memory: bool) -> bool:
        """Begin, for the trace file ``path``; returns false where another role of this process did."""
        import torch
        from torch._C._profiler import _ExperimentalConfig
        from torch.profiler import ProfilerActivity, profile

        with self._lock:
            if self._running is not None:
                return False
            has_devices = torch.cuda.is_available()
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if has_devices else [])]
            # What computes may be another thread than the one that is called. Allocations, though, PyTorch records of
            # the thread that began alone; on devices the snapshot has them all.
            in_trace = memory and not has_devices
            threads = _ExperimentalConfig(profile_all_threads=not in_trace)
            self._running = profile(activities=activities, profile_memory=in_trace, experimental_config=threads)
            self._path = path
            if memory and has_devices:
                torch.cuda.memory._record_memory_history(max_entries=_MEMORY_ENTRIES)
            self._running.start()
            return True

    def end(self, path: Path, memory: bool) -> None:
        """End what was begun for ``path``, and write it."""
        import torch

        with self._lock:
            if self._running is None or self._path != path:
                return
            running, self._running, self._path = self._running, None, None
            running.stop()
            path.parent.mkdir(parents=True, exist_ok=True)
            running.export_chrome_trace(str(path))
            if memory and torch.cuda.is_available():
                torch.cuda.memory._dump_snapshot(str(path.with_suffix(".memory.pickle")))
                torch.cuda.memory._record_memory_history(enabled=None)


_PROFILER: Final = _Profiler()


def profiled_here(method: str) -> Any:
    """Return what begins or ends the profiler of this process, where ``method`` is one of these; else ``None``."""
    return {BEGIN: _PROFILER.begin, END: _PROFILER.end}.get(method)
