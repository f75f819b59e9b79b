"""Brings requests to generation engines, whichever has a place for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from roll.config import SamplingConfig
from roll.generation import Completion, GenerationRequest
from roll.schedulers.generation_metrics import GenerationMeter
from roll.schedulers.replicas import GenerationClient, Replica, ReplicaDown, ReplicaPool

_ABORT_SECONDS = 5.0
"""How long an engine may take to confirm that a request is over before it is believed to hang."""


class GenerationScheduler:
    """Routes requests to engine replicas; to those who generate it looks like one engine.

    A request goes to the least loaded replica, and every later one of its trajectory to the same, which has its prefix
    (:class:`~roll.schedulers.replicas.ReplicaPool`). Where all are full, requests wait, oldest group first.

    A request that takes longer than ``timeout`` is aborted and tried on another replica. A replica that raises
    :class:`~roll.schedulers.replicas.ReplicaDown` gets no more requests until :meth:`replace`, and those that it had
    move at once. Every other exception of an engine reaches the caller unchanged.

    Args:
        replicas: One engine, or several with the same weights.
        max_running_requests: Most requests at a time per replica; ``None`` leaves the bound to the engines.
        timeout: Seconds that a request may take at a replica; ``None`` for any time.
        retries: How often a request is tried again.
        prefix: Put before request ids and sessions, so that several schedulers can share engines.
        part: Which of how many schedulers that share the engines this is. Each knows only its own requests, so among
            engines that are equal to it each begins with another one.
        clock: Seconds, for metrics.

    Raises:
        ValueError: If there is no replica, or a bound is not positive.
    """

    def __init__(
        self,
        replicas: GenerationClient | Sequence[GenerationClient],
        *,
        max_running_requests: int | None = None,
        timeout: float | None = None,
        retries: int = 3,
        prefix: str = "",
        part: tuple[int, int] = (0, 1),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        _check(max_running_requests, retries, timeout)
        clients = list(replicas) if isinstance(replicas, Sequence) else [replicas]
        self.sampled_tokens = 0
        self._pool = ReplicaPool(clients, max_running_requests, part[0] * len(clients) // part[1])
        self._timeout = timeout
        self._retries = retries
        self._prefix = prefix
        self._meter = GenerationMeter(clock)

    @classmethod
    def for_run(
        cls,
        config: SamplingConfig,
        replicas: GenerationClient | Sequence[GenerationClient],
        *,
        prefix: str = "",
        part: tuple[int, int] = (0, 1),
        clock: Callable[[], float] = time.perf_counter,
    ) -> GenerationScheduler:
        """Return the scheduler that ``config`` asks for.

        Where engines wait until everything is quiet (:func:`waits_for_quiet`) they keep to the bound: they admit
        in an order of their own, and here it is the order of arrival that breaks ties.
        """
        most = None if waits_for_quiet(config) else config.max_running_requests
        timeout = config.generation_timeout
        return cls(replicas, max_running_requests=most, timeout=timeout, prefix=prefix, part=part, clock=clock)

    async def generate(self, request: GenerationRequest) -> Completion:
        """Return the completion of ``request``.

        A request that took too long every time comes back with ``finish_reason="abort"`` and without tokens: its
        trajectory ends, the run goes on.

        Raises:
            ReplicaDown: If one replica after the other went down with the request.
        """
        if self._prefix:
            session = None if request.session is None else self._prefix + request.session
            request = replace(request, request_id=self._prefix + request.request_id, session=session)
        begun = self._meter.clock()
        completion = await self._serve(request)
        self.sampled_tokens += len(completion.token_ids)
        self._meter.finished(len(request.prompt_ids), completion, self._meter.clock() - begun)
        return completion

    async def release(self, session: str) -> None:
        """Let the engines forget the prefix of a finished trajectory."""
        session = self._prefix + session
        for replica in self._pool.forget(session):
            try:
                await replica.client.release(session)
            except ReplicaDown:
                self._pool.mark_down(replica)

    def metrics(self) -> dict[str, float]:
        """Return what happened since the last call.

        Returns:
            ``queue`` and ``running`` now and ``…_max``; ``replicas_up``; ``requests``; ``tokens_per_second`` sampled;
            ``prefix_cache_hit_rate`` (prompt tokens that were cached); ``latency_mean``, ``_p50``, ``_p95``, ``_max``
            of a turn in seconds, waiting included, and ``wait_mean``; ``retries``, ``timeouts``, ``given_up``; with
            several replicas ``replica_<rank>/running`` and ``/served`` (since the start) of those that had any.
        """
        return self._meter.report(self._pool.replicas, self._pool.waiting)

    def replace(self, rank: int, client: GenerationClient) -> None:
        """Put another engine, with the current weights, in the place of a replica; requests of the old one move."""
        self._pool.replace(rank, client)

    async def _serve(self, request: GenerationRequest) -> Completion:
        """Return the completion, from the first replica that gives one."""
        attempt, failed, waited = 0, None, 0.0
        while True:
            replica, seconds = await self._place(request, failed)
            waited += seconds
            # A replica may still know the attempt before.
            tried = replace(request, request_id=f"{request.request_id}#{attempt}") if attempt else request
            completion = await self._attempt(replica, tried)
            if completion is not None:
                completion.waited = waited
                return completion
            attempt, failed = attempt + 1, replica
            if attempt > self._retries:
                return self._give_up(request, replica)
            self._meter.counts["retries"] += 1

    async def _place(self, request: GenerationRequest, failed: Replica | None) -> tuple[Replica, float]:
        """Return a replica that has room, and the seconds until it had."""
        replica = self._pool.take(request.session, failed)
        if replica is not None:
            self._meter.placed(self._pool.running, 0.0)
            return replica, 0.0
        begun = self._meter.clock()
        self._meter.queued(self._pool.waiting + 1)
        replica = await self._pool.wait(request.session, request.priority, failed)
        waited = self._meter.clock() - begun
        self._meter.placed(self._pool.running, waited)
        return replica, waited

    async def _attempt(self, replica: Replica, request: GenerationRequest) -> Completion | None:
        """Return what a replica makes of a request whose place is taken; ``None`` if it is to be tried elsewhere."""
        try:
            async with asyncio.timeout(self._timeout) as limit:
                replica.attempts.add(limit)
                try:
                    completion = await replica.client.generate(request)
                finally:
                    replica.attempts.discard(limit)
            replica.timeouts = 0
            replica.served += 1
            return completion
        except ReplicaDown:
            self._pool.mark_down(replica)
        except TimeoutError:
            if not limit.expired():
                raise
            if replica.up:
                replica.timeouts += 1
                self._meter.counts["timeouts"] += 1
                await self._abort(replica, request.request_id)
        except asyncio.CancelledError:
            await self._abort(replica, request.request_id)
            raise
        finally:
            self._pool.give_back(replica)
        return None

    async def _abort(self, replica: Replica, request_id: str) -> None:
        """End a request at its replica; one that does not answer has hung and is left alone."""
        try:
            async with asyncio.timeout(_ABORT_SECONDS) as limit:
                await replica.client.abort(request_id)
        except ReplicaDown:
            self._pool.mark_down(replica)
        except TimeoutError:
            if not limit.expired():
                raise

    def _give_up(self, request: GenerationRequest, replica: Replica) -> Completion:
        self._meter.counts["given_up"] += 1
        if replica.up:
            return Completion([], [], "abort")
        raise ReplicaDown(
            f"Request {request.request_id!r} was tried {self._retries + 1} times, and the last replica went down with "
            f"it; {self._pool.describe()}"
        )


def waits_for_quiet(config: SamplingConfig) -> bool:
    """Whether engines form batches only when no episode is at work outside them, so that runs are equal bit for bit."""
    return config.deterministic and config.cluster == "local"


def _check(max_running_requests: int | None, retries: int, timeout: float | None) -> None:
    if max_running_requests is not None and max_running_requests < 1:
        raise ValueError(f"max_running_requests={max_running_requests}: must be at least 1, or None for no bound")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout={timeout}: must be greater than 0 seconds, or None for no limit")
    if retries < 0:
        raise ValueError(f"retries={retries}: must be at least 0")
