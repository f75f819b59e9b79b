from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys

import pytest

from roll.config.process import collector_waits, prepare_process, process_defaults, settle_collector

PYTHONS_OWN = (700, 10, 10)


def test_what_settling_the_garbage_collector_changes_can_be_undone() -> None:
    tests_have, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.set_threshold(*PYTHONS_OWN)
    try:
        undo = settle_collector()
        try:
            assert gc.get_threshold()[0] > PYTHONS_OWN[0] and gc.get_freeze_count() > frozen
        finally:
            undo()
        assert (gc.get_threshold(), gc.get_freeze_count()) == (PYTHONS_OWN, 0)
    finally:
        gc.set_threshold(*tests_have)


def test_the_collector_waits_for_imports_and_then_looks_at_what_is_new_alone() -> None:
    frozen = gc.get_freeze_count()
    with collector_waits() as imported:
        assert not gc.isenabled()
        imported()
        assert gc.isenabled() and gc.get_freeze_count() > frozen
    assert gc.isenabled() and gc.get_freeze_count() == 0
    with pytest.raises(ValueError), collector_waits():
        raise ValueError
    assert gc.isenabled()


def test_proxies_are_not_asked_for_this_machine_wherever_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*process_defaults(), "https_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    prepare_process({"https_proxy": "http://proxy.example:3128"})
    assert os.environ["https_proxy"] == "http://proxy.example:3128"
    assert {"127.0.0.1", "localhost"} < set(os.environ["no_proxy"].split(","))


FAULTS = """
import resource, sys
from roll.config.process import settle_allocator
if sys.argv[1] == "settled":
    settle_allocator()

def results():
    [bytearray(b"x" * (20 << 20)) for _ in range(5)]

results()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
results()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.processes
@pytest.mark.skipif("glibc" not in platform.libc_ver()[0], reason="another C library than GNU's")
def test_memory_that_was_freed_is_taken_again_unless_the_user_has_said_how() -> None:
    def faults(word: str, **said: str) -> int:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
        words = [sys.executable, "-c", FAULTS, word]
        return int(subprocess.run(words, capture_output=True, text=True, check=True, env={**env, **said}).stdout)

    assert faults("settled") < faults("as it is") / 3
    assert faults("settled", MALLOC_ARENA_MAX="2") > faults("settled") * 2
