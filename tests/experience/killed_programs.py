"""Programs that are killed: ``python killed_programs.py explore|train|decide STORE …``.

Where the last word is ``reviewed``, every third group waits for a person, who decides as its number says.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from experience_support import make_group
from ray_session import ray_store

from roll.experience.base import ExperienceStore, Reader
from roll.experience.folder import FolderStore
from roll.experience.indexed import TRAIN
from roll.experience.priorities import priority_of
from roll.experience.reviewing import Decision, with_scores
from roll.experience.sql import SqlStore
from roll.trajectories.model import TrajectoryGroup

PER_CALL = 3
READERS = {
    "once": Reader("once"),
    "twice": Reader("twice", uses=2),
    "mixed": Reader("mixed", 3, None, priority_of("advantage", {}), cooldown=2, fresh_share=0.6),
}


def waits(number: int) -> bool:
    return number % 3 == 0


def decision_of(number: int) -> Decision:
    """Return what the person decides about a group that waits."""
    return Decision.read(("reject", "approve", "7")[number // 3 % 3])


def as_decided(number: int) -> TrajectoryGroup:
    """Return a group as it is learned from, where every third waits for a person."""
    group = make_group(number)
    return with_scores(group, decision_of(number).of(len(group.trajectories)).scores) if waits(number) else group


def number_of(group_id: str) -> int:
    return int(group_id.rpartition("-")[2])


def opened(store: str, reader: Reader = TRAIN) -> ExperienceStore:
    """Open a store in a folder, in a database, or in the cluster of ``RAY_ADDRESS``."""
    if store.startswith("ray:"):
        return ray_store(store, reader)
    return SqlStore(store, reader) if "://" in store else FolderStore(store, reader)


def explore(store: str, checkpoint: Path, last: int, reviewed: bool) -> None:
    """Append groups in calls of three, each with the last one of the call before, from a checkpoint that is behind."""
    experience = opened(store)
    call = json.loads(checkpoint.read_text()) if checkpoint.exists() else 0
    while call * PER_CALL < last:
        numbers = range(max(0, call * PER_CALL - 1), (call + 1) * PER_CALL)
        experience.append([replace(make_group(n), waits=reviewed and waits(n)) for n in numbers], call)
        print(json.dumps(list(numbers)), flush=True)
        call += 1
        if call % 4 == 0:
            save(checkpoint, call - 2)
    experience.finish()
    print("done", flush=True)


def train(store: str, checkpoint: Path, reader: Reader, count: int, reviewed: bool) -> None:
    """Lease step after step, and note in a checkpoint what was trained; the store hears of it only afterwards."""
    experience = opened(store, reader)
    state = json.loads(checkpoint.read_text()) if checkpoint.exists() else {"step": 0, "trained": []}
    while True:
        finished = experience.finished and not experience.waiting()
        lease = experience.lease(count, state["step"] + 1)
        if lease is None:
            if finished:
                break
            time.sleep(0.002)
            continue
        for group in lease.groups:
            number = number_of(group.group_id)
            expected = as_decided(number) if reviewed else make_group(number)
            assert group == expected, f"group {number} is not what was appended, or decided"
            state["trained"].append(number)
        state["step"] += 1
        print(state["step"], flush=True)
        if state["step"] % 3 == 0:
            save(checkpoint, state)
            experience.commit(state["step"])
    save(checkpoint, state)
    experience.commit(state["step"])
    print("done", flush=True)


def decide(store: str) -> None:
    """Decide about each group that waits."""
    experience = opened(store)
    while True:
        finished = experience.finished
        waiting = experience.waiting()
        for each in waiting:
            experience.decide(each.group_id, decision_of(number_of(each.group_id)))
            print(number_of(each.group_id), flush=True)
        if finished and not waiting:
            break
        time.sleep(0.002)
    print("done", flush=True)


def save(checkpoint: Path, state: object) -> None:
    temporary = checkpoint.with_suffix(".tmp")
    temporary.write_text(json.dumps(state))
    os.replace(temporary, checkpoint)


if __name__ == "__main__":
    what, store, checkpoint, *rest = sys.argv[1:]
    reviewed = rest[-1:] == ["reviewed"]
    if what == "explore":
        explore(store, Path(checkpoint), int(rest[0]), reviewed)
    elif what == "decide":
        decide(store)
    else:
        train(store, Path(checkpoint), READERS[rest[0]], int(rest[1]), reviewed)
