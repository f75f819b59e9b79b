"""Thousands of environments in one process: what they take of its memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.exhaustive]

PLAY = """
import json, re
from pathlib import Path
from roll.envs import make
envs = [make("SimpleSokoban") for _ in range(4096)]
boards = {env.reset(seed=seed)[0] for seed, env in enumerate(envs)}
steps = [env.step("<answer>Up</answer>") for env in envs]
# Its own peak: what getrusage says contains that of the process which started it.
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
print(json.dumps({"mib": peak / 1024, "boards": len(boards), "steps": len(steps)}))
"""


def test_4096_sokoban_environments_at_the_same_time_take_less_than_a_gibibyte() -> None:
    words = [sys.executable, "-c", PLAY]
    found = json.loads(subprocess.run(words, capture_output=True, text=True, check=True, timeout=500).stdout)
    assert found["steps"] == 4096 and found["boards"] > 1000
    assert found["mib"] < 1024, found
