"""An explorer and a trainer as programs that are killed: ``python killed_programs.py explore|train STORE …``."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from experience_support import make_group
from ray_session import ray_store

from roll.experience.base import ExperienceStore, Reader
from roll.experience.folder import FolderStore
from roll.experience.indexed import TRAIN
from roll.experience.priorities import priority_of
from roll.experience.sql import SqlStore

PER_CALL = 3
READERS = {
    "once": Reader("once"),
    "twice": Reader("twice", uses=2),
    "mixed": Reader("mixed", 3, None, priority_of("advantage", {}), cooldown=2, fresh_share=0.6),
}


def opened(store: str, reader: Reader = TRAIN) -> ExperienceStore:
    """Open a store in a folder, in a database, or in the cluster of ``RAY_ADDRESS``."""
    if store.startswith("ray:"):
        return ray_store(store, reader)
    return SqlStore(store, reader) if "://" in store else FolderStore(store, reader)


def explore(store: str, checkpoint: Path, last: int) -> None:
    """Append groups in calls of three, each with the last one of the call before, from a checkpoint that is behind."""
    experience = opened(store)
    call = json.loads(checkpoint.read_text()) if checkpoint.exists() else 0
    while call * PER_CALL < last:
        numbers = range(max(0, call * PER_CALL - 1), (call + 1) * PER_CALL)
        experience.append([make_group(number) for number in numbers], call)
        print(json.dumps(list(numbers)), flush=True)
        call += 1
        if call % 4 == 0:
            save(checkpoint, call - 2)
    experience.finish()
    print("done", flush=True)


def train(store: str, checkpoint: Path, reader: Reader, count: int) -> None:
    """Lease step after step, and note in a checkpoint what was trained; the store hears of it only afterwards."""
    experience = opened(store, reader)
    state = json.loads(checkpoint.read_text()) if checkpoint.exists() else {"step": 0, "trained": []}
    while True:
        finished = experience.finished
        lease = experience.lease(count, state["step"] + 1)
        if lease is None:
            if finished:
                break
            time.sleep(0.002)
            continue
        for group in lease.groups:
            number = int(group.group_id.rpartition("-")[2])
            assert group == make_group(number), f"group {number} is not what was appended"
            state["trained"].append(number)
        state["step"] += 1
        print(state["step"], flush=True)
        if state["step"] % 3 == 0:
            save(checkpoint, state)
            experience.commit(state["step"])
    save(checkpoint, state)
    experience.commit(state["step"])
    print("done", flush=True)


def save(checkpoint: Path, state: object) -> None:
    temporary = checkpoint.with_suffix(".tmp")
    temporary.write_text(json.dumps(state))
    os.replace(temporary, checkpoint)


if __name__ == "__main__":
    what, store, checkpoint, *rest = sys.argv[1:]
    if what == "explore":
        explore(store, Path(checkpoint), int(rest[0]))
    else:
        train(store, Path(checkpoint), READERS[rest[0]], int(rest[1]))
