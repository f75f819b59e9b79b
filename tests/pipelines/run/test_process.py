"""A run that is started where torch is loaded, and where an event loop runs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from roll.config.process import process_defaults
from roll.pipelines.run.interrupts import runner

pytestmark = pytest.mark.processes

IDLE = """
import sys, time
import torch

if sys.argv[1] == "settled":
    from roll.pipelines.run.process import settle_process
    settle_process({})
values = torch.zeros(1 << 16)
values.add_(1)
begun = time.process_time()
for _ in range(50):
    values.add_(1)
    time.sleep(0.02)
print(time.process_time() - begun)
"""

LATE = """
import os, torch
from roll.pipelines.run.process import settle_process
notes = settle_process({"OMP_NUM_THREADS": "1", "MY_VARIABLE": "2"})
print(torch.get_num_threads(), os.environ["MY_VARIABLE"], notes)
print(settle_process({"OMP_NUM_THREADS": "1", "MY_VARIABLE": "2"}))
"""

PAGES = """
import re
from pathlib import Path
from roll.config.process import prepare_process
prepare_process()
import torch
values = torch.ones(1 << 24)
print(re.search(r"AnonHugePages: +(\\d+)", Path("/proc/self/smaps_rollup").read_text())[1])
"""

LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def run(script: str, *arguments: str, **variables: str) -> str:
    names = {**os.environ, "OMP_NUM_THREADS": "2", **variables}
    for name in process_defaults():
        names.pop(name, None)
    words = [sys.executable, "-c", script, *arguments]
    return subprocess.run(words, env=names, capture_output=True, text=True, check=True).stdout


@pytest.mark.exhaustive
@pytest.mark.skipif(
    not sys.platform.startswith("linux") or (os.cpu_count() or 1) > 2, reason="idle processors are free"
)
def test_idle_threads_sleep_although_torch_was_loaded_first() -> None:
    # Processor time, which other programs on the machine do not change.
    spinning, sleeping = float(run(IDLE, "as it is")), float(run(IDLE, "settled"))
    assert sleeping < spinning / 4


@pytest.mark.exhaustive
@pytest.mark.skipif(
    not LARGE_PAGES.exists() or "[never]" in LARGE_PAGES.read_text(), reason="this system has no large pages"
)
def test_large_tensors_have_large_pages() -> None:
    assert int(run(PAGES)) > 60 * 1024  # of 64 MB


@pytest.mark.exhaustive
def test_variables_that_come_late_are_set_and_named_once() -> None:
    first, second = run(LATE).splitlines()
    assert first.startswith("1 2 [") and "MY_VARIABLE" in first and "OMP_NUM_THREADS" not in first
    assert second == "[]"


async def _where() -> tuple[str, bool]:
    await asyncio.sleep(0)
    return threading.current_thread().name, threading.current_thread() is threading.main_thread()


def test_without_a_loop_the_run_stays_in_its_thread() -> None:
    assert runner()(_where())[1]


def test_inside_a_running_loop_the_run_has_a_thread_of_its_own() -> None:
    async def caller() -> tuple[str, bool]:
        return runner()(_where())

    assert asyncio.run(caller()) == ("roll-run", False)


def test_what_a_run_raises_reaches_the_caller_inside_a_running_loop() -> None:
    async def fails() -> None:
        raise ValueError("no")

    async def caller() -> None:
        runner()(fails())

    with pytest.raises(ValueError, match="no"):
        asyncio.run(caller())
