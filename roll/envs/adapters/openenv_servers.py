"""Environments behind servers of OpenEnv, asked over a WebSocket: each episode has a session of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import httpx

from roll.common.unavailable import UnavailableError
from roll.envs.adapters.libraries import library
from roll.envs.adapters.servers import asking
from roll.envs.base import DEFAULT_ACTION_PATTERN, Outcome
from roll.envs.errors import EnvConfigError
from roll.envs.waiting import AsyncTextEnv

_NOT_SHOWN = ("done", "reward", "metadata")
_LARGEST = 64 * 1024 * 1024


class OpenEnvEnv(AsyncTextEnv):
    """An environment of an OpenEnv server (package `openenv-core`), which need not be installed here.

    An episode is a session. One whose connection breaks cannot go on, for the server forgets it with the connection: it
    raises :class:`roll.envs.UnavailableError`, and a run plays the episode again (`max_retries`).

    Args:
        url: Address of the server, ``http://…``.
        action_field: The field of the server's actions that takes what the policy chose. By default the one that they
            have; where there are several, what the policy writes is a JSON object of them.
        action_values: Further fields of every action.
        observation_field: The field of its observations that is shown. By default the only text among them, else all of
            them as JSON.
        actions: Names of the actions; ``None`` where an action is free text.
        reset_options: What the server's ``reset`` is given beside the seed.
        worst: The least that an action earns. A response without an action earns it.
        success_reward: The reward of a last step from which an episode is solved.
        seconds: For a connection, and for one answer.
        attempts: To connect, with waits that grow from half a second.
        max_steps: The episode is truncated after so many steps.
        format_penalty: Added to the reward of a response without an action.
        action_pattern: Finds the action in a response; empty: the response is the action.
        env_instruction: Replaces what the server says of itself.
        render_mode: ``"ansi"``, ``"rgb_array"`` (a picture of the text) or ``None``.

    Raises:
        EnvConfigError: There is no such server, or it has no such field.
    """

    def __init__(
        self,
        url: str,
        action_field: str | None = None,
        action_values: Mapping[str, Any] | None = None,
        observation_field: str | None = None,
        actions: Sequence[str] | None = None,
        reset_options: Mapping[str, Any] | None = None,
        worst: float = 0.0,
        success_reward: float = 1.0,
        seconds: float = 30.0,
        attempts: int = 3,
        max_steps: int | None = 20,
        format_penalty: float = 0.0,
        action_pattern: str | None = DEFAULT_ACTION_PATTERN,
        env_instruction: str | None = None,
        render_mode: str | None = "ansi",
    ) -> None:
        self._client = library("websockets.asyncio.client", "websockets")
        self._url = url.rstrip("/")
        self._about = _asked(self._url, seconds)
        self._field = _chosen(action_field, self._about.action, "action_field", self._url)
        self._shown = None
        if observation_field is not None or len(self._about.texts) == 1:
            self._shown = _chosen(observation_field, self._about.texts, "observation_field", self._url)
        self._values = dict(action_values or {})
        self._reset_options = dict(reset_options or {})
        self._success, self._seconds, self._attempts = success_reward, seconds, max(1, int(attempts))
        self._connection: Any = None
        super().__init__(
            actions=actions,
            action_pattern=action_pattern,
            format_penalty=format_penalty,
            worst_reward=worst,
            max_steps=max_steps,
            env_instruction=env_instruction,
            render_mode=render_mode,
        )

    def describe(self) -> str:
        """Return what the server says of its environment."""
        if self._field is not None:
            return self._about.description
        return f"{self._about.description}\nAn action is a JSON object with {', '.join(self._about.action)}."

    async def start(self) -> str:  # type: ignore[override]
        """Connect, and reset with a seed drawn from ours."""
        await self.close()
        self._connection = await self._connected()
        told = await self._tell("reset", {"seed": int(self.np_random.integers(1 << 31)), **self._reset_options})
        return self._text(told)

    async def act(self, action: str) -> Outcome:  # type: ignore[override]
        """Step, and say what came of it."""
        chosen = self._values | ({self._field: action} if self._field is not None else _object(action))
        try:
            told = await self._tell("step", chosen)
        except _RefusedError as refused:
            return Outcome(f"The action was refused: {refused}", {"refused": self.worst_reward}, effective=False)
        reward, done = float(told.get("reward") or 0.0), bool(told.get("done"))
        return Outcome(self._text(told), {"server": reward}, done, done and reward >= self._success)

    async def close(self) -> None:  # type: ignore[override]
        """End the session."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await asyncio.wait_for(connection.close(), self._seconds)
            except (OSError, TimeoutError):
                return  # It is gone anyway.

    async def _connected(self) -> Any:
        address = f"ws{self._url.removeprefix('http')}/ws"
        problem: Exception | None = None
        for attempt in range(self._attempts):
            if attempt:
                await asyncio.sleep(0.5 * 2 ** (attempt - 1))
            try:
                return await self._client.connect(address, open_timeout=self._seconds, max_size=_LARGEST)
            except (OSError, TimeoutError, self._failures) as error:
                problem = error
        raise UnavailableError(f"no OpenEnv server at {address}: {problem}") from problem

    @property
    def _failures(self) -> type[Exception]:
        failure: type[Exception] = library("websockets.exceptions", "websockets").WebSocketException
        return failure

    async def _tell(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a message and return the data of its answer.

        Raises:
            UnavailableError: The connection is lost, no answer came in time, or the server has no session left.
            EnvConfigError: The server cannot take the message.
            _RefusedError: It takes no such action.
        """
        try:
            with suppress(self._failures):  # A server that closed the connection may have said why.
                await self._connection.send(json.dumps({"type": kind, "data": dict(data)}))
            answer = json.loads(await asyncio.wait_for(self._connection.recv(), self._seconds))
        except (OSError, TimeoutError, self._failures) as error:
            said = f"{type(error).__name__}: {error}"
            raise UnavailableError(f"OpenEnv server {self._url} gave no answer to {kind}: {said}") from error
        told: Mapping[str, Any] = answer.get("data") or {}
        if answer.get("type") != "error":
            return told
        code, message = str(told.get("code")), str(told.get("message"))
        if code in ("CAPACITY_REACHED", "SESSION_ERROR"):
            raise UnavailableError(f"OpenEnv server {self._url}: {message}")
        if kind == "step" and code == "VALIDATION_ERROR":
            problems = told.get("errors") or ()
            raise _RefusedError("; ".join(f"{each.get('loc')}: {each.get('msg')}" for each in problems) or message)
        raise EnvConfigError(f"OpenEnv server {self._url} answers to {kind}: {message} ({code})")

    def _text(self, told: Mapping[str, Any]) -> str:
        observation = told.get("observation") or {}
        if self._shown is not None:
            return str(observation.get(self._shown, ""))
        return json.dumps(
            {key: value for key, value in observation.items() if key not in _NOT_SHOWN}, ensure_ascii=False
        )


class _RefusedError(Exception):
    """The server takes no such action."""


@dataclass(frozen=True)
class _About:
    """What a server says of its environment: fields of actions, texts among those of observations, and in words."""

    action: tuple[str, ...]
    texts: tuple[str, ...]
    description: str


@lru_cache(maxsize=64)
def _asked(url: str, seconds: float) -> _About:
    """Ask a server what its actions and observations are; once in a process.

    Raises:
        EnvConfigError: It does not say.
    """
    with asking(url, "OpenEnv"):
        schema = httpx.get(f"{url}/schema", timeout=seconds).raise_for_status().json()
        metadata = httpx.get(f"{url}/metadata", timeout=seconds)
        about = metadata.json() if metadata.status_code == 200 else {}
        action, seen = schema["action"]["properties"], schema["observation"]["properties"]
    texts = tuple(name for name, each in seen.items() if each.get("type") == "string" and name not in _NOT_SHOWN)
    return _About(tuple(name for name in action if name != "metadata"), texts, str(about.get("description") or ""))


def _chosen(asked: str | None, there: tuple[str, ...], option: str, url: str) -> str | None:
    if asked is None:
        return there[0] if len(there) == 1 else None
    if asked not in there:
        raise EnvConfigError(f"{option}={asked!r}: {url} has {', '.join(there) or 'none'}")
    return asked


def _object(action: str) -> dict[str, Any]:
    """Return the JSON object that an action is; what is none is left to the server to refuse."""
    try:
        found = json.loads(action)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"action": action}
