"""Environments that wait: awaited in the event loop without a thread, or blocking in as many threads as there are."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Any

import pytest
from manager_fakes import CountEnv, manager, script

from roll.env_managers import CallThreads, EpisodeSpec, Timeouts
from roll.env_managers.event_loop import EnvEventLoop
from roll.envs import AsyncTextEnv, Outcome, TextEnv
from roll.trajectories.model import Status, Trajectory


class Guess(TextEnv):
    """Guess a number."""

    def __init__(self) -> None:
        super().__init__(actions=["1", "2", "3"], max_steps=3, worst_reward=-0.1, format_penalty=-0.2)

    def start(self) -> str:
        self.secret = str(self.np_random.integers(1, 4))
        return "Guess."

    def act(self, action: str) -> Outcome:
        right = action == self.secret
        return Outcome(f"{action}?", {"found": 1.0} if right else {"step": -0.1}, terminated=right, success=right)


class AsyncGuess(AsyncTextEnv):
    """Guess a number."""

    def __init__(self) -> None:
        super().__init__(actions=["1", "2", "3"], max_steps=3, worst_reward=-0.1, format_penalty=-0.2)

    async def start(self) -> str:
        await asyncio.sleep(0)
        return Guess.start(self)  # type: ignore[arg-type]

    async def act(self, action: str) -> Outcome:
        assert threading.current_thread() is threading.main_thread()
        await asyncio.sleep(0)
        return Guess.act(self, action)  # type: ignore[arg-type]


def episode(number: int) -> EpisodeSpec:
    return EpisodeSpec("Count", f"g{number}", 0, number, run_seed=5)


def play_all(make_env: Any, count: int, *replies: str, threads: Any = None, **options: Any) -> list[Trajectory]:
    generate, _ = script(*(replies or ("up",)))

    async def play() -> list[Trajectory]:
        where = threads() if callable(threads) else threads
        runner = manager(generate, threads=where, **options)
        try:
            return await asyncio.gather(*(runner.run(episode(number), make_env) for number in range(count)))
        finally:
            if where is not None:
                where.close()

    return asyncio.run(play())


def told(trajectories: list[Trajectory]) -> list[Any]:
    return [
        (t.status, t.score, t.metrics, [(turn.observation, turn.action, turn.reward_parts) for turn in t.turns])
        for t in trajectories
    ]


@pytest.mark.parametrize("threads", [None, EnvEventLoop, CallThreads], ids=["in place", "event loop", "threads"])
def test_an_environment_that_awaits_plays_as_its_twin_that_does_not(threads: Any) -> None:
    replies = ("<answer>1</answer>", "what?", "<answer>3</answer>")
    wanted = told(play_all(Guess, 12, *replies))
    assert {status for status, *_ in wanted} == {Status.COMPLETED, Status.TRUNCATED_TURNS}
    assert told(play_all(AsyncGuess, 12, *replies, threads=threads)) == wanted


class Meeting(CountEnv):
    """A step ends only when as many episodes as expected are in one at the same time."""

    expected = 0
    barrier: Any = None

    async def step(self, response: str) -> Any:
        await asyncio.wait_for(type(self).barrier.wait(), 60)
        return super().step(response)


@pytest.mark.exhaustive
@pytest.mark.long
def test_thousands_of_environments_wait_at_the_same_time_in_one_event_loop() -> None:
    before = threading.active_count()

    def meet() -> EnvEventLoop:
        Meeting.barrier = asyncio.Barrier(4096)
        return EnvEventLoop()

    played = play_all(lambda: Meeting(goal=1), 4096, threads=meet)
    assert all(trajectory.status is Status.COMPLETED for trajectory in played)
    assert threading.active_count() <= before  # those of tests before this one may have ended meanwhile


@pytest.mark.long
def test_blocking_environments_get_as_many_threads_as_there_are_episodes() -> None:
    barrier = threading.Barrier(512)

    class Blocking(CountEnv):
        def step(self, response: str) -> Any:
            barrier.wait(60)
            during.append(sys.getswitchinterval())
            return super().step(response)

    before, during = sys.getswitchinterval(), []
    played = play_all(lambda: Blocking(goal=1), 512, threads=CallThreads)
    assert all(trajectory.status is Status.COMPLETED for trajectory in played)
    # So many ask for the interpreter less often, or they would do nothing else.
    assert max(during) > 0.04 > before == sys.getswitchinterval()


@pytest.mark.parametrize("kind", ["awaits", "blocks"])
def test_a_limit_on_calls_at_a_time_holds(kind: str) -> None:
    running: list[int] = [0, 0]

    def enter() -> None:
        running[0] += 1
        running[1] = max(running)

    class Awaits(CountEnv):
        async def step(self, response: str) -> Any:
            enter()
            await asyncio.sleep(0.001)
            running[0] -= 1
            return super().step(response)

    class Blocks(CountEnv):
        def step(self, response: str) -> Any:
            enter()
            time.sleep(0.001)
            running[0] -= 1
            return super().step(response)

    where = (lambda: EnvEventLoop(3)) if kind == "awaits" else (lambda: CallThreads(3))
    play_all(lambda: (Awaits if kind == "awaits" else Blocks)(goal=3), 20, threads=where)
    assert 1 < running[1] <= 3


def test_where_the_system_refuses_threads_those_that_are_there_do_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    start, begun = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("roll-env") and len(begun) >= 2:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    played = play_all(lambda: CountEnv(goal=2), 30, threads=CallThreads)
    assert all(trajectory.status is Status.COMPLETED for trajectory in played)


class Bad(CountEnv):
    """Awaits, and then does what ``how`` says; ``closed`` counts."""

    def __init__(self, how: str) -> None:
        super().__init__(goal=1)
        self.how = how

    async def step(self, response: str) -> Any:
        await asyncio.sleep(0)
        if self.how == "raises":
            raise ValueError("box")
        if self.how == "times out itself":
            raise TimeoutError("of a server")
        if self.how == "cancels itself":
            raise asyncio.CancelledError
        if self.how == "rubbish":
            return "nothing"
        while self.how != "hangs":
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.how = "hangs"  # it would not be cancelled, the first time
        return await asyncio.sleep(60)

    async def close(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        self.closed += 1


@pytest.mark.parametrize("threads", [None, EnvEventLoop, CallThreads], ids=["in place", "event loop", "threads"])
@pytest.mark.parametrize(
    ("how", "status", "reason"),
    [
        ("raises", Status.ERROR_ENV, r"step() raised ValueError: box"),
        ("times out itself", Status.ERROR_UNAVAILABLE, r"step() raised TimeoutError: of a server"),
        ("cancels itself", Status.ERROR_ENV, r"raised CancelledError"),
        ("rubbish", Status.ERROR_ENV, r"step() must return"),
        ("hangs", Status.ERROR_TIMEOUT, r"step took longer than timeouts.step=0.2 s"),
        ("will not be cancelled", Status.ERROR_TIMEOUT, r"step took longer than timeouts.step=0.2 s"),
    ],
)
def test_what_goes_wrong_while_awaiting_ends_one_episode(how: str, status: Status, reason: str, threads: Any) -> None:
    bad = Bad(how)
    (trajectory,) = play_all(lambda: bad, 1, threads=threads, timeouts=Timeouts(step=0.2))
    assert trajectory.status is status and reason in (trajectory.error or "")
    until = time.monotonic() + 100
    while threads is CallThreads and not bad.closed and time.monotonic() < until:
        time.sleep(0.01)  # it is closed in a thread
    if how != "will not be cancelled":
        assert bad.closed == 1


def test_a_coroutine_closes_after_the_last_step_and_only_once() -> None:
    class Closing(Bad):
        async def step(self, response: str) -> Any:
            await asyncio.sleep(0)
            return CountEnv.step(self, response)

    env = Closing("")
    (trajectory,) = play_all(lambda: env, 1, threads=EnvEventLoop)
    assert trajectory.status is Status.COMPLETED and env.closed == 1
