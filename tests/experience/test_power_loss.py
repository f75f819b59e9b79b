"""The power of a machine is cut: what a store said to be done is done, whatever was not synced.

Not a real machine: ``disk_model`` says what is simulated, and what is not.
"""

from __future__ import annotations

import os
import pickle
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cut_off_program import PER_CALL, PER_STEP
from disk_model import Moment, library
from experience_support import make_group, opener

from roll.trajectories.model import TrajectoryGroup

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="there is no C compiler"),
]

HERE = Path(__file__).parent


def moments_of(kind: str, folder: Path) -> list[Moment]:
    """Return the moments of a program at which the power may be cut."""
    in_front = library(folder)
    (folder / "machine").mkdir()
    words = [sys.executable, HERE / "cut_off_program.py", kind, folder / "machine", in_front, folder / "record"]
    variables = {**os.environ, "LD_PRELOAD": str(in_front), "PYTHONPATH": f"{HERE}:{HERE.parents[1]}"}
    subprocess.run(words, env=variables, check=True, timeout=300)
    found: list[Moment] = pickle.loads((folder / "record").read_bytes())
    return found


def numbers_of(groups: tuple[TrajectoryGroup, ...]) -> list[int]:
    numbers = [int(group.group_id.rpartition("-")[2]) for group in groups]
    assert list(groups) == [make_group(number) for number in numbers], "whole, and as it was"
    return numbers


def check(kind: str, folder: Path, moment: Moment) -> None:
    """Check a store of a machine that was started again against what was said before."""
    open_again = opener(kind.split()[0], folder if kind == "sqlite" else folder / "output" / "experience")
    if kind != "sqlite":
        (folder / "output" / "experience").mkdir(parents=True, exist_ok=True)
    appended = [number for what, numbers in moment.said if what == "appended" for number in numbers]
    leases = [numbers for what, numbers in moment.said if what == "leased"]
    committed = max([step for what, step in moment.said if what == "committed"], default=0)
    store, looks = open_again(), open_again("looks")
    total = store.counts().groups
    whole = looks.lease(total, 1) if total else None
    there = numbers_of(whole.groups) if whole else []
    assert there in (appended, [*appended, *range(len(appended), len(appended) + PER_CALL)]), "nothing lost, or half"
    assert store.counts().trained >= PER_STEP * committed
    learned: list[int] = []
    for step, numbers in enumerate(leases, 1):
        lease = store.lease(PER_STEP, step)
        assert lease is not None and list(lease.numbers) == numbers, "the same again"
        learned += numbers_of(lease.groups)
    step = len(leases) + 1
    while lease := store.lease(PER_STEP if total - len(learned) >= PER_STEP else 1, step):
        learned += numbers_of(lease.groups)
        step += 1
    assert sorted(learned) == there, "each once"
    store.append([make_group(10**6)], 0)
    store.close()
    looks.close()


@pytest.mark.parametrize(
    "kind",
    ["folder", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("folder after a kill", "sqlite"))],
)
def test_what_was_said_to_be_done_outlives_the_machine(kind: str, tmp_path: Path, draw: random.Random) -> None:
    moments = moments_of(kind, tmp_path)
    assert len(moments) > 30 and len(moments[-1].said) == 18
    for number, moment in enumerate([*draw.sample(moments, 9), moments[-1]]):  # other ones in each run
        for way in (None, draw):
            target = tmp_path / f"{number}-{'as drawn' if way else 'synced'}"
            moment.restore(target, way)
            check(kind, target, moment)
            shutil.rmtree(target)
