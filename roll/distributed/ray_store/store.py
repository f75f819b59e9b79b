"""An experience store in a Ray cluster, for programs on any of its machines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import ray

from roll.config import RunError
from roll.distributed.ray_address import ADDRESS_VARIABLE, named_cluster
from roll.distributed.ray_joining import join
from roll.distributed.ray_store.calls import LostGroupsError, StoreCalls
from roll.distributed.ray_store.host import Standing
from roll.distributed.ray_store.keeper import seal, unseal
from roll.experience.base import Lease, Reader, StoreCounts
from roll.experience.entries import Indexed, Scores, entries_of, first_of_each
from roll.experience.errors import ReviewError, StoreError
from roll.experience.index import Index
from roll.experience.indexed import TRAIN, IndexedStore
from roll.experience.reviewing import Decision, Waiting
from roll.trajectories.model import TrajectoryGroup

NAMESPACE: Final = "roll"
"""Where names of stores are known, unless something else is said."""

PATIENCE: Final = 120.0
"""Seconds that the actor may be gone before that is an error."""


class RemoteIndex(Index):
    """The index that an actor has.

    Args:
        calls: Calls to the actor.
    """

    def __init__(self, calls: StoreCalls) -> None:
        self._calls = calls

    def missing(self, group_ids: Iterable[str]) -> set[str]:
        """Return those ids that no group of the store has."""
        found: set[str] = self._calls.call("missing", list(group_ids))
        return found

    def waiting(self) -> list[Waiting]:
        """Return the groups that wait for a person, in the order in which they came."""
        return list(self._calls.call("waiting"))

    def reviewed(self, group_id: str) -> Indexed:
        """Return a group that waits for a person, or that was decided about."""
        found: Indexed = self._calls.call("reviewed", group_id)
        return found

    def decide(self, group_id: str, decision: Decision, scores: Scores) -> None:
        """Take note of what a person decided about a group."""
        self._calls.call("decide", group_id, decision, scores)

    def lease(self, reader: Reader, count: int, step: int) -> list[Indexed] | None:
        """Choose the groups of a step, or return those that it has."""
        found: list[Indexed] | None = self._calls.call("lease", reader, count, step)
        return found

    def lose(self, group_ids: Sequence[str]) -> None:
        """Take note that groups are gone."""
        self._calls.call("lose", list(group_ids))

    def commit(self, reader: Reader, step: int) -> None:
        """Take note that all steps up to this one are in a checkpoint."""
        self._calls.call("commit", reader, step)

    def rewind(self, reader: Reader, step: int) -> None:
        """Forget the leases of all later steps."""
        self._calls.call("rewind", reader, step)

    def keep_first(self, count: int) -> None:
        """Forget all groups but the first ``count``."""
        self._calls.call("keep_first", count)

    def finish(self) -> None:
        """Take note that nothing more will come."""
        self._calls.call("finish")

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return bool(self._calls.call("finished"))

    def counts(self, reader: Reader) -> StoreCounts:
        """Return how the store stands for a reader before its next step."""
        found: StoreCounts = self._calls.call("counts", reader)
        return found

    def close(self) -> None:
        """Do nothing: the actor stays."""


class RayStore(IndexedStore):
    """Groups between what samples and what learns, with an actor that outlives both and is found by its name.

    An actor has the index. It is made by whoever comes first, on the machine of that program, and stays until the
    cluster ends or somebody kills it. A group lies in the object store of the machine from which it was appended, with
    a keeper of that machine; who leases it reads it from there, and the actor never looks into it.

    Without a folder, all ends with the actor, and groups end with their keeper, or its machine. Those are lost, and
    counted: whoever was to learn from one is given another, and it may be appended again, unless a step learned from
    it. With a folder, groups and index are on the disk of the actor's machine when :meth:`append` returns: Ray makes a
    killed actor again, calls wait for that, and nothing is lost.

    Args:
        name: What it is called.
        reader: Who learns, and how. A priority of your own must be importable on the actor's machine.
        namespace: Where the name is known.
        folder: Where groups are kept; ``None``: in the object stores of the machines that append.
        patience: Seconds that the actor may be gone.
        makes: Whether the actor is made where there is none. If not, ``folder`` says nothing: it is what the store has.

    Raises:
        RunError: No Ray cluster answers.
        StoreError: No cluster is named, or the store cannot be used.
    """

    def __init__(
        self,
        name: str,
        reader: Reader = TRAIN,
        *,
        namespace: str = NAMESPACE,
        folder: Path | None = None,
        patience: float = PATIENCE,
        makes: bool = True,
    ) -> None:
        self._joined = _join(name)
        self._calls = StoreCalls(name, namespace, folder, patience, makes=makes)
        super().__init__(RemoteIndex(self._calls), reader)
        try:
            self._calls.standing()
            self._index.missing([])
        except BaseException:
            self.close()
            raise

    def standing(self) -> Standing:
        """Return where the store lives, and where it keeps its groups."""
        return self._calls.standing()

    def append(self, groups: Sequence[TrajectoryGroup], policy_version: int) -> int:
        """Keep groups that are new; see ``ExperienceStore.append``.

        Raises:
            ValueError: In a folder, a number does not fit its column (token ids are 32-bit, seeds unsigned 64-bit). No
                group of the call is kept.
        """
        first = first_of_each(groups)
        missing = self._index.missing(group.group_id for group in first)
        new = [group for group in first if group.group_id in missing]
        sealed = [seal(group) for group in new]
        return self._calls.append(entries_of(new, policy_version), sealed, policy_version)

    def lease(self, count: int, step: int) -> Lease | None:
        """Return the groups of a step; see ``ExperienceStore.lease``. Of lost ones others take the places.

        Where some are lost that a step had, its lease and all later ones are forgotten: it is the last one, or who
        learns began again before it.
        """
        while True:
            try:
                return super().lease(count, step)
            except LostGroupsError as error:
                self.rewind(step - 1)
                self._index.lose(error.group_ids)

    def look(self, group_id: str) -> TrajectoryGroup:
        """Return a group that waits, or that was decided about, as it was appended.

        Raises:
            ReviewError: There is none of this id, it never waited, or it is lost.
        """
        try:
            return super().look(group_id)
        except LostGroupsError as error:
            self._index.lose(error.group_ids)
            raise ReviewError(
                f"the group {group_id!r} is gone with the machine, or the process, that kept it"
            ) from error

    def groups_of(self, found: Sequence[Indexed]) -> list[TrajectoryGroup]:
        """Return groups of the index, as they were appended."""
        return [unseal(each) for each in self._calls.fetch(found)]

    def close(self) -> None:
        """Leave the cluster, if this store joined it. What was appended and leased stays."""
        if self._joined and ray.is_initialized():
            ray.shutdown()
        self._joined = False


def open_address(address: str, patience: float) -> RayStore:
    """Open a store that is there, by its address: ``ray:NAME``, or ``ray:NAMESPACE/NAME``.

    Raises:
        StoreError: There is none, or no cluster answers.
    """
    namespace, _, name = address.partition(":")[2].rpartition("/")
    try:
        return RayStore(name, namespace=namespace or NAMESPACE, patience=patience, makes=False)
    except RunError as error:
        raise StoreError(str(error).rstrip(".")) from error


def _join(name: str) -> bool:
    """Join the cluster that the environment names, unless this process is in one; return whether it was joined here.

    Raises:
        StoreError: None is named.
        RunError: None answers there.
    """
    if ray.is_initialized():
        return False
    address = named_cluster()
    if address is None:
        raise StoreError(
            f"the experience store {name!r} is in a Ray cluster that all programs join, and none is named. Start one "
            f"(ray start --head --port=6379), and set {ADDRESS_VARIABLE}=127.0.0.1:6379 for each program."
        )
    join(address)
    return True
