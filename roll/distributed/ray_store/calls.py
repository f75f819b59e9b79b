"""Calls to the actor of an experience store, which is found by its name, or made where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, ObjectLostError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from roll.distributed.ray_host import DriverPlace, Failure
from roll.distributed.ray_store.host import Standing, StoreHost
from roll.distributed.ray_store.keeper import Sealed
from roll.distributed.transport import pack, unpack
from roll.experience.entries import Entry, Indexed
from roll.experience.errors import StoreError

Result = TypeVar("Result")

_NEVER: Final = 0
_ALWAYS: Final = -1


class LostGroupsError(StoreError):
    """Groups are gone with the process, or the machine, that kept them.

    Attributes:
        group_ids: Their ids.
    """

    def __init__(self, group_ids: Sequence[str]) -> None:
        super().__init__(
            f"gone with the machine, or the process, that kept them: {', '.join(group_ids)}. With experience.path the "
            "store keeps its groups in a folder, and outlives this"
        )
        self.group_ids = group_ids


class StoreCalls:
    """Calls to one store. Each may be made again without another outcome, so those that found nobody are.

    Args:
        name: Its name.
        namespace: Where the name is known.
        folder: Where it keeps its groups; ``None``: in the object stores of the machines that append.
        patience: Seconds that it may be gone, or silent.
        makes: Whether it is made where there is none. If not, ``folder`` says nothing: it is what the store has.
    """

    def __init__(self, name: str, namespace: str, folder: Path | None, patience: float, *, makes: bool = True) -> None:
        self._makes = makes
        self._name = name
        self._namespace = namespace
        self._folder = None if folder is None else str(folder.absolute())
        self._patience = patience
        self._host: Any = None
        self._keeper: Any = None
        self._lost: StoreError | None = None

    def standing(self) -> Standing:
        """Return what the store is.

        Raises:
            StoreError: It keeps its groups elsewhere, does not answer, or is not there and not to be made.
        """
        return self._again(self._ask_standing)

    def call(self, method: str, *args: Any) -> Any:
        """Return what a method of the store returns.

        Raises:
            StoreError: It is lost, or does not answer.
            Exception: What the method raised.
        """
        packed, here = pack(args), DriverPlace.here()
        return unpack(self._again(lambda host: self._answer(host.call.remote(here, method, packed), method)))

    def append(self, entries: Sequence[Entry], sealed: Sequence[Sealed], policy_version: int) -> int:
        """Keep groups that are new; returns how many were.

        Args:
            entries: What the index keeps of them.
            sealed: The groups. They are put into the object store of this machine; from there a folder is written.
            policy_version: The weights that sampled them.

        Raises:
            StoreError: The store is lost, or does not answer.
            ValueError: In a folder, a number does not fit its column.
        """
        packed = pack((entries, policy_version))

        def keep(host: Any) -> int:
            if self._folder is not None or not sealed:
                # Nobody needs them in an object store when they are written.
                return int(self._answer(host.append.remote(packed, [ray.put(each) for each in sealed]), "append"))
            keeper = self._keeper_of(host)
            while (answer := self._answer(keeper.keep.remote(packed, sealed), "append")) is None:
                self._ask_standing(host)  # which raises what has become of it
            return int(answer)

        return self._again(keep)

    def fetch(self, found: Sequence[Indexed]) -> list[Sealed]:
        """Return groups, read from the object store in place.

        Raises:
            LostGroupsError: Some are gone with who kept them.
            StoreError: They cannot be read.
        """
        packed = pack((found,))

        def read(host: Any) -> list[Sealed]:
            references = self._answer(host.references.remote(packed), "references")
            try:
                return list(ray.get(list(references), timeout=self._patience))
            except ObjectLostError:
                if self._folder is not None:
                    raise  # the actor ended meanwhile; a new one reads them again
                ids = [each.entry.group_id for each in found]
                lost = [name for name, place in zip(ids, references, strict=True) if self._is_lost(place)]
                raise LostGroupsError(lost) from None

        return self._again(read)

    def _keeper_of(self, host: Any) -> Any:
        """Return the actor that keeps what this machine appends."""
        if self._keeper is None:
            node = ray.get_runtime_context().get_node_id()
            self._keeper = ray.get(host.keeper.remote(node), timeout=self._patience)
        return self._keeper

    def _is_lost(self, place: ray.ObjectRef[Sealed]) -> bool:
        try:
            ray.get(place, timeout=self._patience)
        except ObjectLostError:
            return True
        return False

    def _answer(self, running: Any, method: str) -> Any:
        answer = ray.get(running, timeout=self._patience)
        if isinstance(answer, Failure):
            raise answer.exception(f"the experience store {self._name!r}", method)
        return answer

    def _again(self, ask: Callable[[Any], Result]) -> Result:
        """Ask until there is an answer.

        Raises:
            StoreError: There is none for too long, or what it had is lost.
        """
        until, wait = time.monotonic() + self._patience, 0.05
        while True:
            if self._lost is not None:
                raise self._lost
            try:
                return ask(self._found())
            except RayTaskError:
                raise
            except RayError as error:
                if self._folder is not None:
                    self._host = None  # a new one reads the folder
                if self._folder is None and not isinstance(error, ActorUnavailableError | GetTimeoutError):
                    self._lost = self._loss()
                elif isinstance(error, GetTimeoutError) or time.monotonic() > until:
                    raise StoreError(
                        f"the experience store {self._name!r} in the Ray cluster does not answer within "
                        f"{self._patience:g} s: {' '.join(str(error).split())[:300]} Look at what it does (ray list "
                        "actors, ray status), and go on with resume_from_checkpoint=true"
                    ) from error
                else:
                    time.sleep(wait)
                    wait = min(2 * wait, 2.0)

    def _loss(self) -> StoreError:
        return StoreError(
            f"the process of the experience store {self._name!r} has ended, and with it the groups that lay in Ray's "
            "object stores and were not learned from, and who was given which. Begin both runs again with an empty "
            "one, or go on with resume_from_checkpoint=true: the explorer plays on behind its checkpoint. With "
            "experience.path the store keeps its groups in a folder, and outlives this"
        )

    def _found(self) -> Any:
        """Return the actor."""
        if self._host is None:
            found = self._made() if self._makes else self._named()
            self._ask_standing(found)
            self._host = found
        return self._host

    def _made(self) -> Any:
        """Return the actor, which is made where there is none; whoever is first makes it."""
        # On this machine for good: its folder is here.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        host = ray.remote(StoreHost).options(
            name=self._name,
            namespace=self._namespace,
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            max_restarts=_NEVER if self._folder is None else _ALWAYS,
            scheduling_strategy=here,
        )
        return host.remote(self._folder)

    def _named(self) -> Any:
        """Return the actor that is there.

        Raises:
            StoreError: There is none.
        """
        try:
            return ray.get_actor(self._name, namespace=self._namespace)
        except ValueError as error:
            raise StoreError(
                f"this Ray cluster has no experience store {self._name!r} in the namespace {self._namespace!r} (yet): "
                "give the experience.name of the run that explores, or wait until it has begun"
            ) from error

    def _ask_standing(self, host: Any) -> Standing:
        standing: Standing = ray.get(host.standing.remote(), timeout=self._patience)
        if not self._makes:
            self._folder = standing.folder
        if standing.folder != self._folder:
            raise StoreError(
                f"the experience store {self._name!r} of this Ray cluster keeps its groups in "
                f"{standing.folder or 'the object store'}, and this run names {self._folder or 'no folder'}. Let both "
                "programs have the same experience.path, or give this store another experience.name."
            )
        return standing
