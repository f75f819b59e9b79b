"""Episodes that fail through no fault of the policy: which are played again, and that who fails does not choose."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from manager_fakes import CountEnv, manager, says, script, spec

from roll.common.unavailable import UnavailableError, is_unavailable
from roll.env_managers import EnvManagerLimits, Retries, Timeouts, play_again
from roll.generation import Completion, GenerationRequest
from roll.trajectories.model import Status, Trajectory

LONGEST = 8


async def tried(attempt: Callable[[], Awaitable[Trajectory]], retries: Retries) -> Trajectory:
    return await play_again(await attempt(), attempt, retries)


def failing(error: Callable[[], BaseException]) -> CountEnv:
    class Failing(CountEnv):
        def step(self, response: str) -> Any:
            raise error()

    return Failing()


def wrapped() -> BaseException:
    """What an HTTP library raises: an error of its own, from one of Python's."""
    try:
        try:
            raise ConnectionRefusedError(111, "refused")
        except ConnectionRefusedError as refused:
            raise RuntimeError("no response") from refused
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (lambda: ConnectionResetError("gone"), Status.ERROR_UNAVAILABLE),
        (lambda: TimeoutError("no answer"), Status.ERROR_UNAVAILABLE),
        (lambda: UnavailableError("the queue is full"), Status.ERROR_UNAVAILABLE),
        (wrapped, Status.ERROR_UNAVAILABLE),
        (lambda: ValueError("no such box"), Status.ERROR_ENV),
        (lambda: OSError("display"), Status.ERROR_ENV),
    ],
)
def test_only_what_was_not_there_is_tried_again(error: Callable[[], BaseException], status: Status) -> None:
    made: list[CountEnv] = []

    def make() -> CountEnv:
        made.append(failing(error))
        return made[-1]

    generate, _ = script("up")
    attempt = lambda: manager(generate).run(spec(), make)  # noqa: E731
    trajectory = asyncio.run(tried(attempt, Retries(2, wait=0.001)))
    assert trajectory.status is status and trajectory.score is None
    assert trajectory.retries == (2 if status is Status.ERROR_UNAVAILABLE else 0)
    assert [env.closed for env in made] == [1] * (trajectory.retries + 1), "each attempt has an environment of its own"


def test_an_error_that_was_handled_before_another_does_not_count() -> None:
    try:
        try:
            raise ConnectionError("gone")
        except ConnectionError:
            raise ValueError("mine") from None
    except ValueError as error:
        assert not is_unavailable(error)


def test_a_time_out_is_tried_again_and_waits_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        if seconds:
            waits.append(seconds)
        await sleep(0)

    class Slow(CountEnv):
        hangs = 3

        async def step(self, response: str) -> Any:  # type: ignore[override]
            if Slow.hangs:
                Slow.hangs -= 1
                await asyncio.Event().wait()
            return CountEnv.step(self, response)

    generate, _ = script("up")
    attempt = lambda: manager(generate, timeouts=Timeouts(step=0.01)).run(spec(), Slow)  # noqa: E731
    monkeypatch.setattr(asyncio, "sleep", noted)
    trajectory = asyncio.run(tried(attempt, Retries(5, wait=2.0)))
    assert trajectory.status is Status.COMPLETED and trajectory.retries == 3
    assert waits == [2.0, 4.0, 8.0]


class Shaky(CountEnv):
    """Ends when the policy says so; its server is gone at a share of the steps, at others every time."""

    chance = 0.0
    luck = random.Random(3)

    def step(self, response: str) -> Any:
        if self.luck.random() < self.chance:
            raise ConnectionResetError("gone")
        observation, reward, _, _, info = super().step("go on")
        return observation, reward, response == "stop", False, info | {"reward_parts": None}


def lengths(chance: float, retries: int, *, fresh: bool = False) -> dict[str, int]:
    """The turns of 400 episodes by their names, with a policy that stops with a chance of a quarter at each turn."""
    Shaky.chance, attempts = chance, Counter[str]()

    async def generate(request: GenerationRequest) -> Completion:
        seed = (request.seed, attempts[request.session or ""] if fresh else 0)
        return says("stop" if random.Random(str(seed)).random() < 0.25 else "go")

    limits = EnvManagerLimits(max_steps=LONGEST, sequence_length=1000, max_new_tokens=8)
    each = manager(generate, limits=limits)

    async def play(number: int) -> Trajectory:
        of = spec(f"g{number // 8}", number % 8)

        async def attempt() -> Trajectory:
            attempts[of.trajectory_id] += 1
            return await each.run(of, Shaky)

        return await tried(attempt, Retries(retries, wait=0.0))

    async def all_of_them() -> list[Trajectory]:
        return await asyncio.gather(*(play(number) for number in range(400)))

    played = asyncio.run(all_of_them())
    return {f"{t.group_id}/{t.episode}": len(t.turns) for t in played if not t.status.is_error}


def test_episodes_that_were_tried_again_are_those_that_would_have_been_played() -> None:
    """A server that fails at every third step changes no episode; each comes out as it would have without failures."""
    undisturbed = lengths(0.0, 0)
    assert len(undisturbed) == 400 and len(set(undisturbed.values())) == LONGEST
    assert lengths(0.3, 200) == undisturbed


def test_without_retries_or_with_other_samples_short_episodes_survive() -> None:
    """The bias that the same samples avoid: of 400 episodes it is far outside of what chance does."""
    undisturbed = list(lengths(0.0, 0).values())
    mean = sum(undisturbed) / 400
    error = (sum((each - mean) ** 2 for each in undisturbed) / 400 / 400) ** 0.5
    survivors = list(lengths(0.3, 0).values())
    assert len(survivors) < 250 and sum(survivors) / len(survivors) < mean - 5 * error
    others = list(lengths(0.3, 200, fresh=True).values())
    assert len(others) == 400 and sum(others) / 400 < mean - 5 * error


@pytest.mark.parametrize(("crashes", "attempts"), [(True, 3), (False, 1)])
def test_a_program_of_somebody_else_that_crashed_is_tried_again_and_is_an_error_to_the_end(
    crashes: bool, attempts: int
) -> None:
    begun = 0

    async def attempt() -> Trajectory:
        nonlocal begun
        begun += 1
        return Trajectory("Agent", "group", 0, 1, status=Status.ERROR_ENV)

    played = asyncio.run(tried(attempt, Retries(2, 0.0, crashes)))
    assert (played.status, played.score, begun) == (Status.ERROR_ENV, None, attempts)
