"""A role whose workers are Ray actors."""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from roll.distributed.call_watch import CallWatch
from roll.distributed.context import WorkerContext
from roll.distributed.errors import WorkerCallError, WorkerDiedError, WorkerTimeoutError
from roll.distributed.lent_memory import LENDER, LoanError, Neighbour
from roll.distributed.local import require_one_per_worker
from roll.distributed.placement import CPUS_PER_WORKER, RolePlan
from roll.distributed.ray_host import AsyncHost, DriverPlace, Failure, Home, Host
from roll.distributed.ray_post import Post, SilentWorkerError
from roll.distributed.transport import Packed, pack, unpack
from roll.distributed.worker_group import WorkerSpec, gather_by

CLOSE_TIMEOUT = 30.0
"""Seconds that workers have to close before they are killed."""

_READ_AT_START = ("LD_", "PYTHON", "MALLOC_", "GLIBC_", "RAY_", "OPENBLAS_", "MKL_")
"""How environment variables begin that are read before a worker's first line runs."""


@dataclass(frozen=True, slots=True)
class Site:
    """The part of a cluster that a run has reserved.

    Attributes:
        reservation: One bundle per machine of the plan.
        devices: What ``CUDA_VISIBLE_DEVICES`` calls each device: global id to the machine's own name of it.
        env: Environment variables of all processes.
    """

    reservation: PlacementGroup
    devices: Mapping[int, str]
    env: Mapping[str, str]


def actor_name(role: str, rank: int, restarts: int = 0) -> str:
    """Return the name of an actor, as ``ray list actors`` shows it (``roll-actor_infer-1``, made again: ``…~1``).

    A name is used once: Ray keeps that of a dead actor taken while somebody holds a handle to it.
    """
    return f"roll-{role}-{rank}{f'{_AGAIN}{restarts}' if restarts else ''}"


_AGAIN = "~"


class RayCalls:
    """Calls to actors by role and rank; finds them by name, so it can be pickled and outlives their restarts.

    See :class:`roll.distributed.worker_group.WorkerCalls`.
    """

    def __init__(self, role: str, size: int, namespace: str, rpc_timeout: float, *, is_async: bool) -> None:
        self.role = role
        self.size = size
        self._namespace = namespace
        self._rpc_timeout = rpc_timeout
        self._is_async = is_async
        self._actors: dict[int, Any] = {}
        self._posts: dict[int, Post] = {}
        self._homes: dict[int, Home] = {}
        self._given_up: set[int] = set()
        self._far: set[int] = set()
        self._watch: CallWatch | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_actors": {}, "_posts": {}, "_watch": None}

    async def all(self, method: str, *args: Any, timeout: float | None = None) -> list[Any]:
        """Call ``method`` of every worker with the same arguments; results in order of rank."""
        # Stored once, however many read it. One reader alone gets it with the call.
        packed = pack(args) if self.size == 1 else ray.put(pack(args))
        return await self._gather(method, [packed] * self.size, list(range(self.size)), timeout)

    async def each(self, method: str, args: Sequence[tuple[Any, ...]], *, timeout: float | None = None) -> list[Any]:
        """Call ``method`` of every worker, rank i with ``args[i]``; results in order of rank."""
        require_one_per_worker(self.role, self.size, method, args)
        return await self._gather(method, [pack(own) for own in args], list(range(self.size)), timeout)

    async def one(self, rank: int, method: str, *args: Any, timeout: float | None = None) -> Any:
        """Call ``method`` of one worker. Where methods are coroutines, calls at the same time travel together.

        Raises:
            WorkerTimeoutError: It does not answer in time.
        """
        limit = self._rpc_timeout if timeout is None else timeout
        call = self._call_by_post if self._is_async else self._call
        if limit == math.inf:
            return await call(rank, method, pack(args))
        try:
            async with asyncio.timeout(limit) as deadline:
                return await call(rank, method, pack(args))
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise WorkerTimeoutError(self.role, [self.describe(rank)], method, limit) from error

    @property
    def namespace(self) -> str:
        """In which its actors have their names."""
        return self._namespace

    def wait(self, rank: int, method: str, *args: Any) -> Any:
        """Call ``method`` of one worker and wait for the result; for code that is no coroutine.

        Raises:
            WorkerDiedError: If it died.
        """
        try:
            answer = ray.get(self._actor(rank).call.remote(method, pack(args)))
        except RayError as error:
            raise WorkerDiedError(self.role, rank, self.describe(rank), _reason(error)) from error
        return self._opened(answer, rank, method)

    async def _gather(self, method: str, packed: Sequence[Any], ranks: list[int], timeout: float | None) -> list[Any]:
        who = [self.describe(rank) for rank in ranks]
        calls = [self._call(rank, method, own) for rank, own in zip(ranks, packed, strict=True)]
        limit = self._rpc_timeout if timeout is None else timeout
        with nullcontext() if self._watch is None else self._watch.call(self.role, who, method):
            return await gather_by(calls, role=self.role, who=who, what=method, timeout=limit)

    async def _call(self, rank: int, method: str, packed: Any) -> Any:
        near = self._near(rank)
        if near is None:
            return await self._call_with(rank, method, packed, None)
        sent = packed.lent(near) if isinstance(packed, Packed) else packed
        try:
            return await self._call_with(rank, method, sent, Neighbour.here())
        except BaseException as error:
            if isinstance(sent, Packed) and sent.loan is not None:
                LENDER.recall(sent.loan)
            if not isinstance(error, LoanError):
                raise
        # The worker may not open memory of this process, and has not begun: everything goes by Ray from here on.
        self._far.add(rank)
        return await self._call_with(rank, method, packed, None)

    def _near(self, rank: int) -> Neighbour | None:
        """Return the process of a worker that can open memory of this one, and the other way round."""
        home = self._homes.get(rank)
        neighbour = None if home is None or rank in self._far else home.neighbour
        return neighbour if neighbour is not None and neighbour.is_near else None

    async def _call_with(self, rank: int, method: str, packed: Any, caller: Neighbour | None) -> Any:
        actor, described = self._actor(rank), self.describe(rank)
        running = actor.call.options(name=f"{self.role}-{rank}.{method}").remote(method, packed, caller)
        try:
            answer = await running
        except asyncio.CancelledError:
            # A coroutine is cancelled there too, a call that has not begun never will; a running method goes on.
            ray.cancel(running)
            self._given_up.add(rank)
            raise
        except RayTaskError as error:
            # The worker's own exceptions come back as answers: this one is the host's or Ray's.
            raise WorkerCallError(type(error).__name__, str(error)) from error
        except RayError as error:
            self._forget(rank, actor)
            raise WorkerDiedError(self.role, rank, described, _reason(error)) from error
        return self._opened(answer, rank, method)

    async def _call_by_post(self, rank: int, method: str, packed: Any) -> Any:
        actor, described = self._actor(rank), self.describe(rank)
        post = self._posts.get(rank)
        if post is None or post.closed or post.loop is not asyncio.get_running_loop():
            post = self._posts[rank] = Post(actor, f"{self.role}-{rank}", self._rpc_timeout)
        try:
            answer = await post.call(method, packed)
        except RayTaskError as error:
            raise WorkerCallError(type(error).__name__, str(error)) from error
        except RayError as error:
            self._forget(rank, actor)
            raise WorkerDiedError(self.role, rank, described, _reason(error)) from error
        except SilentWorkerError as error:
            raise WorkerTimeoutError(self.role, [described], method, self._rpc_timeout) from error
        if answer is None:
            raise WorkerDiedError(
                self.role, rank, described, f"it cancelled {method}, as a worker does that is closed."
            )
        return self._opened(answer, rank, method)

    def _opened(self, answer: Any, rank: int, method: str) -> Any:
        if isinstance(answer, Failure):
            raise answer.exception(f"{self.role} {self.describe(rank)}", method)
        try:
            return None if answer is None else unpack(answer)
        except LoanError as error:
            raise WorkerCallError(type(error).__name__, str(error)) from error

    def _actor(self, rank: int) -> Any:
        if rank not in self._actors:
            try:
                self._actors[rank] = ray.get_actor(self._newest_name(rank), self._namespace)
            except ValueError as error:
                cause = "no process has its name now; it was ended, or is being made again."
                raise WorkerDiedError(self.role, rank, self.describe(rank), cause) from error
        return self._actors[rank]

    def _newest_name(self, rank: int) -> str:
        """Return the name of the last actor that was made for ``rank``, of those that live.

        Raises:
            ValueError: If none lives.
        """
        stem = actor_name(self.role, rank)
        living = ray.util.list_named_actors(all_namespaces=True)
        names = [actor["name"] for actor in living if actor["namespace"] == self._namespace]
        mine = [name for name in names if name.partition(_AGAIN)[0] == stem]
        return max(mine, key=lambda name: int(name.partition(_AGAIN)[2] or 0))

    def _forget(self, rank: int, actor: Any) -> None:
        """Look for the successor of a dead actor the next time."""
        if self._actors.get(rank) is actor:
            del self._actors[rank]
            self._posts.pop(rank, None)
            self._homes.pop(rank, None)

    def describe(self, rank: int) -> str:
        """Return a worker as messages name it."""
        home = self._homes.get(rank)
        return f"rank {rank}" if home is None else f"rank {rank} (pid {home.pid}, node {home.address})"


class RayGroup(RayCalls):
    """A :class:`roll.distributed.worker_group.WorkerGroup` of Ray actors; make it with :meth:`start`."""

    def __init__(self, plan: RolePlan, spec: WorkerSpec, site: Site, rpc_timeout: float) -> None:
        # A namespace of its own keeps names apart from those of other runs, and of an earlier group of this role.
        namespace = f"roll-{uuid.uuid4().hex[:12]}"
        super().__init__(plan.role, plan.size, namespace, rpc_timeout, is_async=spec.is_async)
        self._plan = plan
        self._spec = spec
        self._site = site
        self._restarts = dict.fromkeys(range(plan.size), 0)
        self._closed = False

    @classmethod
    async def start(
        cls, plan: RolePlan, spec: WorkerSpec, site: Site, *, rpc_timeout: float, watch: CallWatch | None = None
    ) -> RayGroup:
        """Start all workers of a role, at the same time.

        Raises:
            WorkerTimeoutError: If some are not made within ``rpc_timeout`` seconds.
            WorkerDiedError: If the process of one died meanwhile.
            Exception: What a constructor raised, with a note that says which.
        """
        group = cls(plan, spec, site, rpc_timeout)
        group._watch = watch
        try:
            await group._make(range(plan.size))
        except BaseException:
            group._kill(range(plan.size))
            raise
        return group

    def calls(self) -> RayCalls:
        """Return what workers of other roles can be given to call these."""
        calls = RayCalls(self.role, self.size, self._namespace, self._rpc_timeout, is_async=self._is_async)
        calls._homes = dict(self._homes)
        return calls

    async def restart(self, rank: int | None = None) -> None:
        """Kill and make again one worker, or all.

        One worker alone gets a new ``MASTER_PORT``: restart all where they are one ``torch.distributed`` group.
        """
        ranks = range(self.size) if rank is None else range(rank, rank + 1)
        self._kill(ranks)
        for chosen in ranks:
            self._restarts[chosen] += 1
        await self._make(ranks)

    @property
    def closed(self) -> bool:
        """Whether the workers have ended for good."""
        return self._closed

    async def close(self) -> None:
        """Let the workers close, then end their processes."""
        if self._closed:
            return
        self._closed = True
        # A plain worker that still is at a call that nobody waits for would not come to close.
        able = [rank for rank in self._actors if self._is_async or rank not in self._given_up]
        waiting = [self._actors[rank].close.remote() for rank in able]
        try:
            if waiting:
                await asyncio.wait([asyncio.ensure_future(_outcome(ref)) for ref in waiting], timeout=CLOSE_TIMEOUT)
        finally:
            self._kill(range(self.size))

    def _forget(self, rank: int, actor: Any) -> None:
        # A worker that cannot be reached may live on: it is killed before another takes its place.
        pass

    def _kill(self, ranks: range) -> None:
        for rank in ranks:
            if rank in self._posts:
                ended = WorkerDiedError(self.role, rank, self.describe(rank), "it was ended, or is being made again.")
                self._posts.pop(rank).close(ended)
            if rank in self._actors:
                ray.kill(self._actors.pop(rank), no_restart=True)
            self._homes.pop(rank, None)
            self._given_up.discard(rank)

    async def _make(self, ranks: range) -> None:
        deadline = time.monotonic() + self._rpc_timeout
        for rank in ranks:
            self._actors[rank] = self._create(rank)
        homes = await self._ask(ranks, "start", [self._actors[rank].home.remote() for rank in ranks], deadline)
        self._homes.update(zip(ranks, homes, strict=True))
        master = homes[0]
        spec = cloudpickle.dumps((self._spec.cls, self._spec.args, dict(self._spec.kwargs)))
        driver = DriverPlace.here()
        pending = []
        for rank in ranks:
            context = self._context(rank)
            visible = ",".join(self._site.devices[device] for device in context.devices)
            environment = self._env() | context.environment(master.address, master.port, visible)
            pending.append(self._actors[rank].make.remote(spec, driver, environment))
        for rank, answer in zip(ranks, await self._ask(ranks, "make its worker", pending, deadline), strict=True):
            self._opened(answer, rank, "its constructor")

    async def _ask(self, ranks: range, what: str, refs: list[Any], deadline: float) -> list[Any]:
        async def wait(rank: int, ref: Any) -> Any:
            described = self.describe(rank)
            try:
                answer = await ref
            except RayTaskError as error:
                raise WorkerCallError(type(error).__name__, str(error)) from error
            except RayError as error:
                raise WorkerDiedError(self.role, rank, described, _reason(error)) from error
            if isinstance(answer, Failure):
                self._opened(answer, rank, "its constructor")
            return answer

        return await gather_by(
            [wait(rank, ref) for rank, ref in zip(ranks, refs, strict=True)],
            role=self.role,
            who=[self.describe(rank) for rank in ranks],
            what=what,
            timeout=max(0.0, deadline - time.monotonic()),
        )

    def _create(self, rank: int) -> Any:
        host = _actor_class(AsyncHost if self._is_async else Host).options(
            name=actor_name(self.role, rank, self._restarts[rank]),
            namespace=self._namespace,
            num_cpus=CPUS_PER_WORKER,
            # The bundle owns the devices of the machine; which of them a worker sees is set by hand, as mapped.
            num_gpus=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                self._site.reservation, placement_group_bundle_index=self._plan.workers[rank].node
            ),
            max_restarts=0,
            **self._runtime_env(),
        )
        return host.remote(self._context(rank))

    def _env(self) -> dict[str, str]:
        return {**self._site.env, **self._plan.env, **self._spec.env}

    def _runtime_env(self) -> dict[str, Any]:
        """Return the option for variables that count only when a process starts.

        Any option at all costs a new process, seconds instead of Ray's warm ones; the other variables are set later.
        """
        early = {name: value for name, value in self._env().items() if name.startswith(_READ_AT_START)}
        return {"runtime_env": {"env_vars": early}} if early else {}

    def _context(self, rank: int) -> WorkerContext:
        place = self._plan.workers[rank]
        return WorkerContext(
            self.role,
            rank=rank,
            size=self.size,
            local_rank=place.local_rank,
            local_size=place.local_size,
            devices=place.devices,
            own_process=True,
        )


@cache
def _actor_class(host: type) -> Any:
    """Return the class of Ray for a host, always the same: Ray sends each that it has not seen to the whole cluster."""
    return ray.remote(host)


async def _outcome(ref: Any) -> None:
    """Wait for a worker to close; one that cannot is killed like the others."""
    try:
        await ref
    except RayError:
        return


def _reason(error: RayError) -> str:
    """Return the telling part of Ray's message in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, RayActorError) and "The actor is dead because" in text:
        text = text[text.index("The actor is dead because") :]
    return text if len(text) <= 400 else f"{text[:399]}…"
