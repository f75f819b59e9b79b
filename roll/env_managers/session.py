"""Calls into one environment, which block or are awaited, and a check of everything it returns."""

from __future__ import annotations

import asyncio
import contextlib
import io
import math
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from numbers import Real
from typing import Any

from roll.common.unavailable import is_unavailable
from roll.generation.pictures import frame_picture, picture_frame
from roll.tools import Toolbox

AGGREGATIONS = ("last", "mean", "sum", "max")
ROLES = ("user", "tool", "system")
"""Who may say what an environment answers."""

_PARTS_TOLERANCE = 1e-6


class EnvFailure(Exception):
    """An environment raised, or returned something that is not a Gymnasium reset or step.

    Attributes:
        is_unavailable: Whether something that it needs was not there, so that it may go well another time.
    """

    def __init__(self, message: str, is_unavailable: bool = False) -> None:
        super().__init__(message)
        self.is_unavailable = is_unavailable


@dataclass(frozen=True, slots=True)
class EnvStart:
    """A checked ``reset``: first observation, rules for the system message, the first frame, and tools there are.

    ``messages`` is what an episode begins with where it is not the templates that say it.
    """

    observation: str
    instruction: str
    frame: str | None
    toolbox: Toolbox | None
    messages: list[dict[str, str]] | None


@dataclass(frozen=True, slots=True)
class EnvStep:
    """A checked ``step``, the frame after it, and messages where the observation is not simply what the user says."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    action: str | None
    reward_parts: dict[str, float]
    metrics: dict[str, float]
    metrics_agg: dict[str, str]
    frame: str | None
    messages: list[dict[str, str]] | None


class EnvSession:
    """Owns one environment for one episode. Every method may block, or return what is to be awaited; one at a time.

    Environments that failed or hang are left with :meth:`abandon`: they are closed after the running call, if it ever
    returns.
    """

    def __init__(self, make_env: Callable[[], Any], seed: int, member: int = 0) -> None:
        """Make nothing yet; :meth:`start` does.

        Args:
            make_env: Returns a new environment.
            seed: Given to ``reset``.
            member: Number of the episode in its group, which an environment is told whose members have luck of their
                own (``has_own_luck``).
        """
        self._make_env = make_env
        self._seed = seed
        self._member = member
        self._env: Any = None
        self._closed = False
        self._abandoned = False
        self._busy = threading.Lock()

    def start(self) -> EnvStart | Awaitable[EnvStart]:
        """Make and reset the environment; where its ``reset`` is a coroutine, what is returned is to be awaited.

        Raises:
            EnvFailure: If that fails or what comes back is not an observation and an info.
        """
        with self._exclusive():
            with blamed("making the environment"):
                self._env = self._make_env()
            with blamed("reset()"):
                own_luck = getattr(getattr(self._env, "unwrapped", None), "has_own_luck", False) is True
                told = {"options": {"member": self._member}} if own_luck else {}
                returned = self._env.reset(seed=self._seed, **told)
            return (
                self._awaited("reset()", returned, self._started) if isawaitable(returned) else self._started(returned)
            )

    def step(self, response: str, last: bool) -> EnvStep | Awaitable[EnvStep]:
        """Take a step, and close the environment if the episode is over; to be awaited where its ``step`` is.

        Args:
            response: What the policy wrote.
            last: Whether no step will follow in any case.

        Raises:
            EnvFailure: If the environment fails or what comes back is not a step.
        """
        with self._exclusive():
            with blamed("step()"):
                returned = self._env.step(response)
            taken = partial(self._taken, last)
            return self._awaited("step()", returned, taken) if isawaitable(returned) else taken(returned)

    def close(self) -> None | Awaitable[None]:
        """Close the environment; closing twice does nothing. To be awaited where its ``close`` is.

        Raises:
            EnvFailure: If it fails.
        """
        with self._exclusive():
            return self._close()

    def abandon(self, detach: Callable[[Callable[[], object]], None]) -> None:
        """Give the environment up: close it through ``detach`` if it is idle, else when its running call returns."""
        self._abandoned = True
        if self._busy.acquire(blocking=False):
            needs_close = self._env is not None and not self._closed
            self._busy.release()
            if needs_close:
                detach(self._close_quietly)

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Let nobody else call the environment meanwhile; one that was given up during the call is closed after it."""
        try:
            with self._busy:
                yield
        finally:
            if self._abandoned:
                self._close_quietly()

    async def _awaited(self, phase: str, awaitable: Awaitable[Any], then: Callable[[Any], Any]) -> Any:
        """Await user code, and go on with what it returned."""
        try:
            try:
                returned = await awaitable
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                raise _failure(phase, error) from error
            result = then(returned)
            return await result if isawaitable(result) else result
        finally:
            if self._abandoned:
                closing = self._close_quietly()
                if closing is not None:
                    await closing

    def _started(self, returned: Any) -> EnvStart:
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise EnvFailure(f"reset() must return (observation, info), got {_short(returned)}")
        observation, info = returned
        _check_text("reset()", observation)
        if not isinstance(info, Mapping):
            raise EnvFailure(f"reset() must return info as a dict, got {_short(info)}")
        with blamed("instruction"):
            instruction = getattr(self._env, "instruction", "")
        toolbox = getattr(self._env, "toolbox", None)
        told = _messages(info.get("messages"), (*ROLES, "assistant"))
        return EnvStart(observation, _writable("instruction", str(instruction)), self._frame(), toolbox, told)

    def _taken(self, last: bool, returned: Any) -> EnvStep | Awaitable[EnvStep]:
        if not isinstance(returned, tuple) or len(returned) != 5:
            raise EnvFailure(
                f"step() must return (observation, reward, terminated, truncated, info), got {_short(returned)}"
            )
        observation, reward, terminated, truncated, info = returned
        _check_text("step()", observation)
        if not isinstance(info, Mapping):
            raise EnvFailure(f"step() must return info as a dict, got {_short(info)}")
        action = info.get("action")
        number = _number("reward", reward)
        step = EnvStep(
            observation=observation,
            reward=number,
            terminated=bool(terminated),
            truncated=bool(truncated),
            action=None if action is None else _writable("info['action']", str(action)),
            reward_parts=_reward_parts(info.get("reward_parts"), number),
            metrics=_numbers("metrics", info.get("metrics")),
            metrics_agg=_aggregations(info.get("metrics_agg")),
            frame=self._frame(),
            messages=_messages(info.get("messages")),
        )
        if last or step.terminated or step.truncated:
            closing = self._close()
            if closing is not None:
                return _after(closing, step)
        return step

    def _frame(self) -> str | None:
        if getattr(self._env, "render_mode", None) is None:
            return None
        with blamed("render()"):
            frame = _frame_text(self._env.render())
        return None if frame is None else _writable("render()", frame)

    def _close(self) -> Awaitable[None] | None:
        if self._closed or self._env is None:
            return None
        self._closed = True
        with blamed("close()"):
            returned = self._env.close()
        return self._awaited("close()", returned, lambda _: None) if isawaitable(returned) else None

    def _close_quietly(self) -> Awaitable[None] | None:
        # The episode already reports what went wrong first; a second failure of the same environment adds nothing.
        with contextlib.suppress(EnvFailure), self._busy:
            closing = self._close()
            return None if closing is None else _quietly(closing)
        return None


async def _after(closing: Awaitable[None], step: EnvStep) -> EnvStep:
    await closing
    return step


async def _quietly(closing: Awaitable[None]) -> None:
    with contextlib.suppress(EnvFailure):
        await closing


@contextlib.contextmanager
def blamed(phase: str) -> Iterator[None]:
    """Around user code: whatever it raises becomes an :class:`EnvFailure` that says where."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        raise _failure(phase, error) from error


def _failure(phase: str, error: BaseException) -> EnvFailure:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return EnvFailure(f"{phase} raised {type(error).__name__}: {error}{where}", is_unavailable(error))


def _short(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 120 else text[:117] + '...'}"


def _check_text(call: str, observation: object) -> None:
    if not isinstance(observation, str):
        raise EnvFailure(f"{call} must return the observation as text, got {_short(observation)}")
    _writable(f"the observation of {call}", observation)


def _writable(what: str, text: str) -> str:
    """Return text that has tokens and that files can hold: Python also makes text of halves of surrogate pairs."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            around = text[max(0, error.start - 20) : error.end + 20]
            raise EnvFailure(
                f"{what} holds half of a surrogate pair, which no encoding can write: {around!r}; decode bytes with "
                "errors='replace'"
            ) from error
    return text


def _number(name: str, value: object) -> float:
    if type(value) is float and math.isfinite(value):  # nearly all are; to ask an abstract class takes longer
        return value
    if not isinstance(value, Real) or not math.isfinite(value):
        raise EnvFailure(f"{name} must be a finite number, got {_short(value)}")
    return float(value)


def _numbers(name: str, values: object) -> dict[str, float]:
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise EnvFailure(f"info[{name!r}] must be a dict, got {_short(values)}")
    return {
        _writable(f"a key of info[{name!r}]", str(key)): _number(f"info[{name!r}][{key!r}]", value)
        for key, value in values.items()
    }


def _messages(values: object, roles: Sequence[str] = ROLES) -> list[dict[str, str]] | None:
    if values is None:
        return None
    if not isinstance(values, Sequence) or not values:
        raise EnvFailure(f"info['messages'] must be a list of messages, got {_short(values)}")
    checked = []
    for value in values:
        if (
            not isinstance(value, Mapping)
            or value.get("role") not in roles
            or not isinstance(value.get("content"), str)
        ):
            raise EnvFailure(
                f"info['messages'] must have messages with a role ({', '.join(roles)}) and a content that is text, got "
                f"{_short(value)}"
            )
        checked.append({"role": value["role"], "content": _writable("info['messages']", value["content"])})
    return checked


def _reward_parts(values: object, reward: float) -> dict[str, float]:
    parts = _numbers("reward_parts", values)
    if values is None:
        return {"env": reward}
    total = sum(parts.values())
    if abs(total - reward) > _PARTS_TOLERANCE * max(1.0, abs(reward)):
        raise EnvFailure(f"info['reward_parts'] sums to {total:g}, but the reward is {reward:g}: {parts}")
    return parts


def _aggregations(values: object) -> dict[str, str]:
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise EnvFailure(f"info['metrics_agg'] must be a dict, got {_short(values)}")
    for name, how in values.items():
        if how not in AGGREGATIONS:
            raise EnvFailure(
                f"info['metrics_agg'][{name!r}] must be one of {', '.join(AGGREGATIONS)}, got {_short(how)}"
            )
    return {str(name): str(how) for name, how in values.items()}


def picture_of(frame: str | None) -> bytes:
    """Return the encoded picture of a frame.

    Raises:
        EnvFailure: It is none.
    """
    picture = frame_picture(frame)
    if picture is None:
        drawn = "nothing" if frame is None else "text"
        raise EnvFailure(
            f"the policy is to see a picture, and render() gave {drawn}: set env_config.render_mode to rgb_array, and "
            "return an array uint8 [height, width, 3]"
        )
    return picture


def _frame_text(frame: Any) -> str | None:
    """Return board text as it is, and an image ``uint8 [height, width, 3]`` as a PNG data URI."""
    if frame is None or isinstance(frame, str):
        return frame
    if getattr(frame, "ndim", None) != 3 or str(getattr(frame, "dtype", "")) != "uint8":
        raise TypeError(f"render() must return text or a uint8 array [height, width, 3], got {_short(frame)}")
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="PNG")
    return picture_frame(buffer.getvalue())
