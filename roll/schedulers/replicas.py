"""The engine replicas of a run: which one serves a request, and who waits for a free place."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from roll.generation import Completion, GenerationRequest
from roll.schedulers.waiting_line import Waiter, WaitingLine


class ReplicaDown(RuntimeError):
    """A replica is gone. What a client raises when its engine cannot be reached; requests move to another replica."""


class GenerationClient(Protocol):
    """What the scheduler needs of a replica; every :class:`roll.strategies.base.GenerationStrategy` has it.

    Cancelling ``generate`` must end the request at the engine, or :meth:`abort` must.
    """

    async def generate(self, request: GenerationRequest) -> Completion:
        """Return the completion of ``request``; raises :class:`ReplicaDown` if the engine is gone."""
        ...

    async def abort(self, request_id: str) -> None:
        """End a running request; unknown ids are ignored."""
        ...

    async def release(self, session: str) -> None:
        """Forget the prefix kept for ``session``; unknown sessions are ignored."""
        ...


@dataclass(slots=True, eq=False)
class Replica:
    """One engine and what it is doing.

    Attributes:
        rank: Its number.
        client: How to reach it.
        limit: Most requests at a time, ``None`` for no bound.
        up: Whether it takes requests.
        running: Requests it has now.
        sessions: Trajectories whose prefix it keeps.
        timeouts: Requests in a row that took too long; such a replica is chosen last.
        served: Requests it completed.
        attempts: Limits of the requests it has, by which they are called back when it goes down.
        order: Among equals, the one with the smallest goes first.
    """

    rank: int
    client: GenerationClient
    limit: int | None
    up: bool = True
    running: int = 0
    sessions: int = 0
    timeouts: int = 0
    served: int = 0
    attempts: set[asyncio.Timeout] = field(default_factory=set)
    order: int = 0

    @property
    def has_room(self) -> bool:
        """Whether it takes one more request now."""
        return self.up and (self.limit is None or self.running < self.limit)

    @property
    def load(self) -> tuple[int, int, int, int]:
        """What the least loaded replica has the least of."""
        return self.timeouts, self.running, self.sessions, self.order


@dataclass(slots=True, eq=False)
class _Session:
    """When a trajectory began, and where its prefix is: the replica that serves it now, and all that did."""

    age: int
    home: Replica | None = None
    visited: list[Replica] = field(default_factory=list)


class _LeastLoaded:
    """Replicas that have room, the least loaded first; a change of load costs the logarithm of their number."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._serial = count()
        self._heap: list[tuple[tuple[int, int, int, int], int, Replica]] = []
        for replica in replicas:
            self.changed(replica)

    def changed(self, replica: Replica) -> None:
        """Take note of another load. What was noted before is found to be old when its turn comes."""
        if len(self._heap) > 4 * len(self._replicas) + 64:
            noted = [(each.load, next(self._serial), each) for each in self._replicas if each.has_room]
            self._heap = noted
            heapq.heapify(noted)
        if replica.has_room:
            heapq.heappush(self._heap, (replica.load, next(self._serial), replica))

    def first(self, avoid: Replica | None) -> Replica | None:
        """Return the least loaded replica with room that is not ``avoid``."""
        passed = None
        found = None
        while self._heap and found is None:
            load, _, replica = self._heap[0]
            if replica is not avoid and replica.has_room and replica.load == load:
                found = replica
            else:
                entry = heapq.heappop(self._heap)
                if replica is avoid and replica.load == load:
                    passed = entry
        if passed is not None:
            heapq.heappush(self._heap, passed)
        return found


class ReplicaPool:
    """Hands out places at replicas: never more than a replica's limit, the first in line first.

    A trajectory stays at the replica that has its prefix while that one is up. It moves when its replica is full and
    another one has a place that nobody else waits for: an idle engine costs more than computing a prefix anew.

    Everything happens in the thread of the event loop and nothing is awaited unless a request must wait, so that with
    a place free the scheduler adds no turn of the event loop.

    Args:
        clients: The replicas, by rank.
        limit: Most requests at a time per replica.
        first: Rank of the replica that goes first among equals; then those with higher ranks, then rank 0.
    """

    def __init__(self, clients: Sequence[GenerationClient], limit: int | None, first: int = 0) -> None:
        if not clients:
            raise ValueError("GenerationScheduler: no replicas; give at least one engine")
        self.replicas = [
            Replica(rank, client, limit, order=(rank - first) % len(clients)) for rank, client in enumerate(clients)
        ]
        self._by_load = _LeastLoaded(self.replicas)
        self._up = len(self.replicas)
        self._running = 0
        self._limit = limit
        self._line = WaitingLine()
        self._sessions: dict[str, _Session] = {}
        self._begun = count()

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return len(self._line)

    @property
    def running(self) -> int:
        """Requests at replicas."""
        return self._running

    def take(self, session: str | None, avoid: Replica | None = None) -> Replica | None:
        """Return a replica with a place taken at it, ``None`` if the request has to wait."""
        home = self._home(session, avoid)
        if home is None or not home.has_room:
            home = self._by_load.first(avoid)
            if home is None:
                return None
        self._place(home, session)
        return home

    async def wait(self, session: str | None, priority: int, avoid: Replica | None = None) -> Replica:
        """Wait in line, while no replica is up for one that is; return a replica with a place taken at it."""
        place: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()
        waiter = Waiter(priority, self._known(session).age, session, place, avoid)
        self._line.add(waiter, self._home(session, avoid))
        try:
            return await place
        except asyncio.CancelledError:
            self._line.leave(waiter)
            if place.done() and not place.cancelled():
                self.give_back(place.result())
            raise

    def give_back(self, replica: Replica) -> None:
        """Free a place; the first in line gets it."""
        replica.running -= 1
        self._running -= 1
        self._by_load.changed(replica)
        self._fill(replica)

    def forget(self, session: str) -> list[Replica]:
        """Forget a trajectory that is over; return the replicas that keep a prefix of it."""
        known = self._sessions.pop(session, None)
        if known is None:
            # It never generated. A single engine is told all the same: whoever fed it may have used it directly.
            return self.replicas if len(self.replicas) == 1 and self.replicas[0].up else []
        if known.home is not None:
            known.home.sessions -= 1
            self._by_load.changed(known.home)
        return [replica for replica in known.visited if replica.up]

    def mark_down(self, replica: Replica) -> None:
        """Give a replica no more requests and call back those that it has; they go to another one."""
        if not replica.up:
            return
        replica.up = False
        self._up -= 1
        now = asyncio.get_running_loop().time()
        for attempt in replica.attempts:
            if not attempt.expired():
                attempt.reschedule(now)
        self._line.scatter(replica)
        self._fill_all()

    def replace(self, rank: int, client: GenerationClient) -> None:
        """Put another engine in the place of a replica; requests of the old one move."""
        old = self.replicas[rank]
        self.mark_down(old)
        self.replicas[rank] = new = Replica(rank, client, self._limit, served=old.served, order=old.order)
        self._up += 1
        self._by_load.changed(new)
        self._fill_all()

    def describe(self) -> str:
        """Say how the replicas stand, for messages."""
        return ", ".join(
            f"replica {r.rank} is {'up' if r.up else 'down'} with {r.running} requests" for r in self.replicas
        )

    def _home(self, session: str | None, avoid: Replica | None) -> Replica | None:
        """Return the replica a request belongs to; after a failure the least loaded of the others."""
        if avoid is not None:
            others = [replica for replica in self.replicas if replica.up and replica is not avoid]
            return min(others, key=_load) if others else avoid if avoid.up else None
        home = None if session is None else self._known(session).home
        return home if home is not None and home.up else None

    def _known(self, session: str | None) -> _Session:
        """Return what is known of a trajectory; one that is new begins now."""
        if session is None:
            return _Session(next(self._begun))
        known = self._sessions.get(session)
        if known is None:
            known = self._sessions[session] = _Session(next(self._begun))
        return known

    def _place(self, replica: Replica, session: str | None) -> None:
        replica.running += 1
        self._running += 1
        known = None if session is None else self._known(session)
        if known is not None and known.home is not replica:
            if known.home is not None:
                known.home.sessions -= 1
                self._by_load.changed(known.home)
            known.home = replica
            replica.sessions += 1
            if replica not in known.visited:
                known.visited.append(replica)
        self._by_load.changed(replica)

    def _fill_all(self) -> None:
        """Give all free places to those who wait, evenly."""
        while self._line and (replica := self._by_load.first(None)) is not None:
            # Where it failed all who wait, another one may have a place for them.
            if not self._fill(replica) and not any(map(self._fill, sorted(self.replicas, key=_load))):
                return

    def _fill(self, replica: Replica) -> bool:
        """Give one place of a replica to the first in its line; return whether that was possible."""
        if not self._line or not replica.has_room:
            return False
        waiter = self._line.next(replica, alone=self._up == 1)
        if waiter is None:
            return False
        self._place(replica, waiter.session)
        waiter.place.set_result(replica)
        return True


def _load(replica: Replica) -> tuple[int, int, int, int]:
    return replica.load
