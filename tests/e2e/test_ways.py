"""How far it is from a program to the two places where its work is done, and which way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.support import ROOT

PLACES = {
    "the optimiser step": ("torch/optim/adam.py", "Adam.step", 14, 8),
    "the environment's step": ("roll/envs/base.py", "TextEnv.step", 18, 9),
}
"""File and function, and the most calls and files of this library on the way there, the function itself included."""


@pytest.mark.exhaustive
@pytest.mark.processes
@pytest.mark.parametrize("place", PLACES)
def test_the_way_from_the_program_is_short(place: str, tmp_path: Path) -> None:
    file, function, most_calls, most_files = PLACES[place]
    program = [str(ROOT / "examples" / "start_agentic_pipeline.py"), "--config-name", "sokoban"]
    small = ["max_steps=1", "eval_steps=0", "train_env_manager.env_groups=2", "train_env_manager.group_size=2"]
    small += ["rollout_batch_size=4", "progress=none", f"output_dir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("ways.py")), file, function, *program, *small],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    lines = [line.removeprefix("WAY ") for line in done.stdout.splitlines() if line.startswith("WAY ")]
    assert lines, done.stdout + done.stderr
    # A list comprehension is a call of its own before Python 3.12.
    way = [
        (where, name) for where, name in json.loads(lines[0]) if where.startswith("roll/") and "<listcomp>" not in name
    ]
    shown = "\n".join(f"{number:3} {where} {name}" for number, (where, name) in enumerate(way, start=1))
    print(f"From the program to {place}:\n{shown}")
    assert way[0][1] == "launch"
    assert len(way) <= most_calls, shown
    assert len({where for where, _ in way}) <= most_files, shown
