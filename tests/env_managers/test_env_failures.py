from __future__ import annotations

import asyncio
import math
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from manager_fakes import Activity, CountEnv, manager, play, says, script, spec, turn_of

from roll.env_managers import CallThreads, Timeouts
from roll.generation import GenerationRequest
from roll.trajectories.model import Status


def bent(**changes: Callable[..., Any]) -> CountEnv:
    """A good environment with some methods replaced."""
    return type("Bent", (CountEnv,), {name: lambda self, *a, _f=f, **k: _f() for name, f in changes.items()})()


def fail(error: BaseException) -> Callable[[], Any]:
    def raiser() -> Any:
        raise error

    return raiser


GOOD = ("at 1", 0.0, False, False, {})
RUBBISH = {
    "reset_raises": ({"reset": fail(KeyError("level"))}, r"reset\(\) raised KeyError: 'level' \(.*:\d+ in raiser\)"),
    "reset_exits": ({"reset": lambda: sys.exit(3)}, r"reset\(\) raised SystemExit: 3"),
    "reset_none": ({"reset": lambda: None}, r"reset\(\) must return \(observation, info\), got NoneType None"),
    "reset_bytes": ({"reset": lambda: (b"x", {})}, r"observation as text, got bytes b'x'"),
    "reset_info": ({"reset": lambda: ("x", None)}, r"info as a dict"),
    "step_raises": (
        {"step": fail(ValueError("box"))},
        r"turn 0\): step\(\) raised ValueError: box \(.*in raiser\).*'up'",
    ),
    "step_interrupts": ({"step": fail(asyncio.CancelledError())}, r"step\(\) raised CancelledError"),
    "step_stop_iteration": ({"step": fail(StopIteration())}, r"step\(\) raised StopIteration"),
    "step_four": ({"step": lambda: GOOD[:4]}, r"observation, reward, terminated, truncated, info\), got tuple"),
    "step_nan": ({"step": lambda: ("x", math.nan, False, False, {})}, r"reward must be a finite number, got float nan"),
    "step_reward_text": ({"step": lambda: ("x", "1", False, False, {})}, r"reward must be a finite number, got str"),
    "step_observation": ({"step": lambda: (None, 0.0, False, False, {})}, r"observation as text, got NoneType"),
    "parts": (
        {"step": lambda: ("x", 1.0, False, False, {"reward_parts": {"env": 0.5}})},
        r"sums to 0.5, but the reward is 1",
    ),
    "metrics": ({"step": lambda: ("x", 1.0, False, False, {"metrics": {"a": math.inf}})}, r"\['metrics'\]\['a'\]"),
    "agg": ({"step": lambda: ("x", 1.0, False, False, {"metrics_agg": {"a": "min"}})}, r"one of last, mean, sum, max"),
    "reset_surrogate": ({"reset": lambda: ("\ud83d", {})}, r"observation of reset\(\) holds half of a surrogate pair"),
    "step_surrogate": ({"step": lambda: ("é \udc00", *GOOD[1:])}, r"observation of step\(\) holds half of a surrogate"),
    "action_surrogate": ({"step": lambda: (*GOOD[:4], {"action": "\ud83d"})}, r"info\['action'\] holds half of a surr"),
    "frame_surrogate": ({"render": lambda: "\ud83d"}, r"render\(\) holds half of a surrogate pair"),
    "raises_surrogate": ({"step": fail(ValueError("\ud83d"))}, r"step\(\) raised ValueError: \\ud83d"),
    "render": ({"render": fail(OSError("display"))}, r"render\(\) raised OSError: display"),
    "frame": ({"render": lambda: 3}, r"render\(\) must return text or a uint8 array"),
}


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("case", RUBBISH)
def test_a_broken_environment_ends_its_episode_with_a_readable_error(case: str, threaded: bool) -> None:
    changes, message = RUBBISH[case]
    env = bent(**changes)
    activity = Activity()
    trajectory = play(env, threads=CallThreads(1) if threaded else None, activity=activity)
    assert trajectory.status is Status.ERROR_ENV
    assert trajectory.error is not None and trajectory.error.startswith("Count (g/0, seed 11, turn 0): ")
    assert re.search(message, trajectory.error), trajectory.error
    assert trajectory.score is None and trajectory.turns == []
    assert activity.outside == 0
    wait_until(lambda: env.closed == 1)


def test_an_environment_that_cannot_be_made_ends_its_episode() -> None:
    generate, calls = script("up")
    trajectory = asyncio.run(manager(generate).run(spec(), fail(ImportError("no module"))))
    assert trajectory.status is Status.ERROR_ENV and not calls
    assert "making the environment raised ImportError: no module" in (trajectory.error or "")


def test_turns_before_the_failure_are_kept() -> None:
    class Late(CountEnv):
        def step(self, response: str) -> Any:
            if self.count == 2:
                raise RuntimeError("late")
            return super().step(response)

    trajectory = play(Late())
    assert len(trajectory.turns) == 2 and "turn 2" in (trajectory.error or "")
    assert trajectory.metrics["count"] == 2.0


def wait_until(condition: Callable[[], bool], seconds: float = 100.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "condition never held"
        time.sleep(0.005)


class Hanging(CountEnv):
    """Its second step waits until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()

    def step(self, response: str) -> Any:
        if self.count == 1:
            self.release.wait(300)
        return super().step(response)


@pytest.mark.long
@pytest.mark.parametrize("max_threads", [1, 2])
def test_hung_environments_do_not_hold_up_others(max_threads: int) -> None:
    hung = [Hanging() for _ in range(4)]
    good = [CountEnv() for _ in range(20)]
    generate, _ = script("up")
    threads = CallThreads(max_threads)
    activity = Activity()
    timeouts = Timeouts(step=0.5)  # long enough for a good step beside a garbage collection of a long test session

    async def run() -> list[Any]:
        each = manager(generate, threads=threads, timeouts=timeouts, activity=activity)
        return await asyncio.gather(*(each.run(spec(), lambda env=env: env) for env in [*hung, *good]))

    trajectories = asyncio.run(run())
    assert [env.count for env in hung] == [1] * 4, "they hang still"
    assert [trajectory.status for trajectory in trajectories] == [Status.ERROR_TIMEOUT] * 4 + [Status.COMPLETED] * 20
    assert "turn 1): step took longer than timeouts.step=0.5 s" in (trajectories[0].error or "")
    assert len(trajectories[0].turns) == 1 and activity.outside == 0
    assert threads.threads <= max_threads
    assert [env.closed for env in hung] == [0] * 4
    for env in hung:
        env.release.set()
    wait_until(lambda: all(env.closed == 1 for env in hung))


@pytest.mark.long
def test_waiting_for_a_thread_does_not_count_as_hanging() -> None:
    class Slow(CountEnv):
        def step(self, response: str) -> Any:
            time.sleep(0.1)
            return super().step(response)

    generate, _ = script("up")

    async def run() -> list[Any]:
        each = manager(generate, threads=CallThreads(1), timeouts=Timeouts(step=1))
        return await asyncio.gather(*(each.run(spec(episode=i), Slow) for i in range(16)))

    trajectories = asyncio.run(run())
    assert {trajectory.status for trajectory in trajectories} == {Status.COMPLETED}
    assert max(turn.seconds["queue"] for turn in trajectories[-1].turns) > 1


def test_a_reset_that_hangs_times_out() -> None:
    release = threading.Event()
    env = bent(reset=lambda: release.wait(30))
    trajectory = play(env, threads=CallThreads(1), timeouts=Timeouts(reset=0.05))
    release.set()
    assert trajectory.status is Status.ERROR_TIMEOUT and not trajectory.turns
    assert "reset took longer than timeouts.reset=0.05 s" in (trajectory.error or "")


def test_a_generation_that_hangs_times_out_and_is_cancelled() -> None:
    cancelled: list[int] = []

    async def generate(call: GenerationRequest) -> Any:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(turn_of(call))
            raise

    env, activity = CountEnv(), Activity()
    each = manager(generate, timeouts=Timeouts(generate=0.05), activity=activity)
    trajectory = asyncio.run(each.run(spec(), lambda: env))
    assert trajectory.status is Status.ERROR_TIMEOUT and "generate took longer than 0.05 s" in (trajectory.error or "")
    assert cancelled == [0] and env.closed == 1 and activity.outside == 0 and activity.log == [1, 0, 1, 0]


@pytest.mark.parametrize("error", [TimeoutError("engine"), RuntimeError("engine")])
def test_an_engine_failure_is_not_blamed_on_the_environment(error: Exception) -> None:
    async def generate(call: GenerationRequest) -> Any:
        raise error

    env, activity = CountEnv(), Activity()
    with pytest.raises(type(error), match="engine"):
        asyncio.run(manager(generate, activity=activity).run(spec(), lambda: env))
    assert env.closed == 1 and activity.outside == 0


@pytest.mark.parametrize("where", ["generate", "step"])
def test_cancelling_an_episode_closes_its_environment_and_goes_on_to_the_caller(where: str) -> None:
    env, activity = Hanging(), Activity()

    async def generate(call: GenerationRequest) -> Any:
        if where == "generate":
            await asyncio.sleep(30)
        return says("up")

    async def run() -> None:
        task = asyncio.create_task(
            manager(generate, threads=CallThreads(1), activity=activity).run(spec(), lambda: env)
        )
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert activity.outside == 0
    env.release.set()
    wait_until(lambda: env.closed == 1)


def test_a_failing_close_is_reported() -> None:
    trajectory = play(bent(close=fail(OSError("socket"))))
    assert trajectory.status is Status.ERROR_ENV and "close() raised OSError: socket" in (trajectory.error or "")


@pytest.mark.processes
def test_the_process_ends_although_an_environment_hangs() -> None:
    code = (
        "import asyncio, time\n"
        "from roll.common.threads import CallThreads, CallTimeoutError\n"
        "async def main():\n"
        "    try:\n        await CallThreads(1).call(lambda: time.sleep(60), timeout=0.05)\n"
        "    except CallTimeoutError:\n        print('gave up')\n"
        "asyncio.run(main())\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout == "gave up\n"
