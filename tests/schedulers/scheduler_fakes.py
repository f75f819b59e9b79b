"""A fake engine in simulated time, and groups played against it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from roll.generation import Completion, GenerationRequest, SamplingParams
from roll.schedulers.replicas import ReplicaDown
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup, Turn


class FakeReplica:
    """A scheduler's client without an engine: answers after as many seconds as ``seconds`` says, remembers everything.

    What a real engine does as a client, it does too: ``test_generation_clients.py``.
    """

    def __init__(self, seconds: Callable[[GenerationRequest], float] = lambda request: 1.0) -> None:
        self.seconds = seconds
        self.version = 0
        self.dead = False
        self.deaf = False
        self.seen: list[GenerationRequest] = []
        self.running: dict[str, asyncio.Future[str]] = {}
        self.most_running = 0
        self.aborted: list[str] = []
        self.released: list[str] = []

    @property
    def ids(self) -> list[str]:
        return [request.request_id for request in self.seen]

    async def generate(self, request: GenerationRequest) -> Completion:
        if self.dead:
            raise ReplicaDown("the fake engine is dead")
        if request.request_id in self.running:
            raise ValueError(f"request {request.request_id!r} is already running; request ids must be unique")
        first = self.version
        self.seen.append(request)
        over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.running[request.request_id] = over
        self.most_running = max(self.most_running, len(self.running))
        timer = asyncio.get_running_loop().call_later(self.seconds(request), finish, over)
        try:
            reason = await over
        finally:
            timer.cancel()
            del self.running[request.request_id]
        if self.dead:
            raise ReplicaDown("the fake engine died")
        tokens = [request.seed % 97] * min(request.sampling.max_new_tokens, 4)
        if reason == "abort":
            tokens = tokens[:-1]
        return Completion(tokens, [-1.0] * len(tokens), reason, (first, self.version), cached_tokens=1)

    def die(self) -> None:
        """End at once; whoever waits for an answer hears of it unless the fake is ``deaf``."""
        self.dead = True
        if not self.deaf:
            for over in self.running.values():
                finish(over)

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        if request_id in self.running:
            finish(self.running[request_id], "abort")

    async def release(self, session: str) -> None:
        self.released.append(session)


def finish(over: asyncio.Future[str], reason: str = "stop") -> None:
    if not over.done():
        over.set_result(reason)


def call(
    request_id: str, session: str | None = None, *, priority: int = 0, tokens: int = 4, prompt: int = 2
) -> GenerationRequest:
    sampling = SamplingParams(tokens, stop_token_ids=(2,))
    return GenerationRequest(request_id, [1] * prompt, sampling, hash(request_id), session, priority)


def trajectory(
    group: str, episode: int, versions: list[tuple[int, int]], status: Status = Status.COMPLETED, score: float = 1.0
) -> Trajectory:
    turns = [Turn([1], [5, 6], [-1.0, -1.0], policy_version=version) for version in versions]
    broken = status.is_error
    error = f"{group}/{episode} broke" if broken else None
    return Trajectory("fake", group, episode, 0, "same", turns, status, None if broken else score, error)


def group_of(number: int, versions: list[tuple[int, int]], **options: object) -> TrajectoryGroup:
    name = f"train-{number:07d}"
    return TrajectoryGroup(name, "fake", [trajectory(name, 0, versions, **options)])  # type: ignore[arg-type]
