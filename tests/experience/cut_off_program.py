"""A program whose machine loses its power: ``python cut_off_program.py folder|sqlite FOLDER LIBRARY RECORD``.

It appends to a store, leases and commits, says what it was told to be done, and records when the power may be cut.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

from disk_model import Disk
from experience_support import make_group, opener

from roll.experience.folder import FolderStore
from roll.trajectories.store import write_trajectories

PER_CALL, PER_STEP = 3, 2
CALLS = 6


def main(kind: str, root: Path, in_front: Path, record: Path) -> None:
    disk = Disk(root, in_front)
    place = root / "output" / "experience"
    if kind == "sqlite":
        place = root
    if kind == "folder after a kill":
        (place / "store" / "segments").mkdir(parents=True)  # what a program made that was killed before it synced
    open_again = opener(kind.split()[0], place)
    store = open_again()
    for call in range(CALLS):
        numbers = list(range(call * PER_CALL, (call + 1) * PER_CALL))
        groups = [make_group(number) for number in numbers]
        if isinstance(store, FolderStore) and call % 2:
            file = root / f"run-{call}.parquet"
            members = [member for group in groups for member in group.trajectories]
            write_trajectories(file, members, step=call, phase="train", run="explores")
            store.append_file(file, groups, call, {group.group_id for group in groups})
        else:
            store.append(groups, call)
        disk.said.append(("appended", numbers))
        lease = store.lease(PER_STEP, call + 1)
        assert lease is not None
        disk.said.append(("leased", list(lease.numbers)))
        store.commit(call + 1)
        disk.said.append(("committed", call + 1))
        if call == CALLS // 2:
            store.close()
            store = open_again()
    disk.now()
    store.close()
    disk.now()
    record.write_bytes(pickle.dumps(disk.moments))


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:]))
