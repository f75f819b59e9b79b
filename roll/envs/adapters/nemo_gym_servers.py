"""Environments behind resource servers of NeMo Gym, asked over HTTP: each episode has a session of its own."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any, Final

import httpx

from roll.common.unavailable import UnavailableError
from roll.envs.adapters.nemo_gym_tasks import GymTask, ResponseItems, read_tasks
from roll.envs.adapters.servers import asking
from roll.envs.errors import EnvConfigError
from roll.envs.waiting import AsyncTextEnv
from roll.tools import Tool, Toolbox, WrongCallError
from roll.tools.calls import ToolCall, typed_arguments

_BUSY: Final = (429, 502, 503, 504)
_REFUSED: Final = (400, 404, 405, 422)
_COUNTS: Final = ("tool_calls", "tool_calls_wrong", "tool_failures")
_GRACE: Final = 5.0
"""Seconds beyond those of the client, for a call of a tool."""

_THREADS: Final = ThreadPoolExecutor(256, "nemo-gym")
"""What waits for calls: so many episodes of a process can do so at the same time."""


class NemoGymEnv(AsyncTextEnv):
    """A task of a resource server of NeMo Gym (package `nemo-gym`), which need not be installed here.

    The seed chooses a row of the file: its messages begin the episode, its functions are the tools. A call is a request
    to the server's endpoint of that name; a response without a call, or with one that the server has no endpoint for,
    ends the episode, and the server's ``/verify`` gives its reward. A server with ``/reset`` and ``/step`` (those
    that are written like Gymnasium's environments) is told every response instead, and rewards it by itself.

    An episode is a session of the server's, by cookie. When the server is gone it raises
    :class:`roll.envs.UnavailableError`, and a run plays the episode again (`max_retries`).

    Args:
        url: Address of the server, ``http://…``.
        tasks: A file of JSON Lines, one task a row, as the server's own examples are.
        worst: The least that a step of a server with ``/step`` earns. A response that it refuses earns it.
        success_reward: The reward of a last step from which an episode is solved.
        verify_error_reward: The reward of an episode over which the server's ``/verify`` fails (status 500), which may
            be the doing of the policy. By default the episode is played again.
        seconds: For a connection, and for one answer.
        attempts: To begin a session, with waits that grow from half a second.
        max_steps: After so many responses the episode is truncated, and verified as it is.
        formats: The forms of calls that are read.
        max_result_characters: A longer result of a call is cut, and says so.
        format_penalty: Unused: every response is an action.
        env_instruction: Replaces what the system says in every task.
        render_mode: ``"ansi"``, ``"rgb_array"`` (a picture of the text) or ``None``.

    Raises:
        EnvConfigError: There is no such server or no such file, or a row is no task of text and functions.
    """

    toolbox: Toolbox | None = None
    """Of the task that has begun."""

    def __init__(
        self,
        url: str,
        tasks: str,
        worst: float = 0.0,
        success_reward: float = 1.0,
        verify_error_reward: float | None = None,
        seconds: float = 30.0,
        attempts: int = 3,
        max_steps: int | None = 20,
        formats: tuple[str, ...] = ("hermes", "xml"),
        max_result_characters: int = 8000,
        format_penalty: float = 0.0,
        env_instruction: str | None = None,
        render_mode: str | None = "ansi",
    ) -> None:
        super().__init__(
            action_pattern="",
            format_penalty=format_penalty,
            worst_reward=worst,
            max_steps=max_steps,
            env_instruction=env_instruction or "",
            render_mode=render_mode,
        )
        from roll.config.tool_use import ToolUse

        self._url = url.rstrip("/")
        self._endpoints = _asked(self._url, seconds)
        self._tasks = read_tasks(tasks)
        self._success, self._verify_error_reward = success_reward, verify_error_reward
        self._seconds, self._attempts = seconds, max(1, int(attempts))
        self._use = ToolUse.model_validate(
            {
                "formats": list(formats),
                "max_calls": 10 * (max_steps or 100),
                "timeout": seconds + _GRACE,
                "max_result_characters": max_result_characters,
            }
        )
        self._client: httpx.AsyncClient | None = None

    async def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin a session with the task that the seed chooses; see :meth:`TextEnv.reset`."""
        observation, info = await super().reset(seed=seed, options=options)
        return observation, {**info, "messages": self._told}

    async def start(self) -> str:  # type: ignore[override]
        """Choose a task, and begin a session with it."""
        await self.close()
        self.task = self._tasks[int(self.np_random.integers(len(self._tasks)))]
        self._client = httpx.AsyncClient(base_url=self._url, timeout=self._seconds, verify=_trusted())
        self._items = ResponseItems()
        loop = asyncio.get_running_loop()
        tools = [self._tool(about, loop) for about in self.task.tools]
        self.toolbox = Toolbox(tools, self._use) if tools else None
        self._parameters = {tool.name: tool.parameters for tool in tools}
        begun = await self._begin()
        self._told = _told(self.task, self._instruction)
        if begun.get("observation"):
            self._told.append({"role": "user", "content": str(begun["observation"])})
        return "\n\n".join(message["content"] for message in self._told)

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:  # type: ignore[override]
        """Let the server answer what the policy wrote; see :meth:`TextEnv.step`."""
        self._understood(action)
        calls = [self._typed(call) for call in self.toolbox.find(action)] if self.toolbox is not None else []
        last = self.max_steps is not None and self._steps + 1 >= self.max_steps
        came = await (self._stepped(action, calls) if self._endpoints.steps else self._answered(action, calls, last))
        self._steps += 1
        self._observation = came.observation
        truncated = not came.over and (came.truncated or last)
        self._running = not (came.over or truncated)
        success = not self._running and came.reward >= self._success
        metrics = {
            "success": float(success),
            "action_is_valid": float(came.valid),
            "action_is_effective": float(came.valid),
            "format_penalty": 0.0,
            **dict.fromkeys(_COUNTS, 0.0),
            **came.metrics,
        }
        info: dict[str, Any] = {
            "action": ", ".join(call.name for call in calls if call.name) or ("answer" if came.valid else None),
            "reward_parts": {"server": came.reward},
            "metrics": metrics,
            "metrics_agg": {**self.STANDARD_METRICS, **dict.fromkeys(_COUNTS, "sum")},
            **({} if came.messages is None else {"messages": came.messages}),
        }
        return self._observation, came.reward, came.over, truncated, info

    async def close(self) -> None:  # type: ignore[override]
        """Let go of the connection; the server is not told."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _answered(self, response: str, calls: Sequence[ToolCall], last: bool) -> _Came:
        """Make the calls of a response, or let the server judge the episode."""
        ids = self._items.add_response(response, calls)
        if not calls or any(call.name in self._parameters and not self._endpoints.has(call.name) for call in calls):
            return await self._verified(_Came("The episode is over.", over=True))
        assert self.toolbox is not None  # there are calls
        answers = await asyncio.get_running_loop().run_in_executor(_THREADS, self.toolbox.answer, calls)
        for call_id, result in zip(ids, answers.results, strict=True):
            if call_id:
                self._items.add_output(call_id, result)
        messages = [{"role": "tool", "content": result} for result in answers.results]
        counts = {name: answers.metrics.get(name, 0.0) for name in _COUNTS}
        came = _Came("\n".join(answers.results), valid=not answers.wrong, messages=messages, metrics=counts)
        return await self._verified(came) if last else came

    async def _verified(self, came: _Came) -> _Came:
        """Return what a last step came to, with the server's reward and the numbers that it tells beside it."""
        body = {**self.task.row, "response": self._items.response(self.task.row)}
        answer = await self._post("verify", body)
        if answer.status_code == 500 and self._verify_error_reward is not None:
            return replace(came, reward=self._verify_error_reward, metrics={**came.metrics, "verify_failed": 1.0})
        told = self._object(answer, "verify")
        numbers = {
            name: float(value)
            for name, value in told.items()
            if isinstance(value, int | float) and name not in body and name not in ("reward", *self.STANDARD_METRICS)
        }
        return replace(came, reward=float(told["reward"]), metrics={**came.metrics, **numbers})

    async def _stepped(self, response: str, calls: Sequence[ToolCall]) -> _Came:
        """Tell a server with /step what the policy wrote."""
        since = len(self._items.items)
        self._items.add_response(response, calls)
        answer = await self._post("step", {**self.task.row, "response": self._items.response(self.task.row, since)})
        if answer.status_code in (400, 422):
            return _Came(f"The response was refused: {_said(answer)}", self.worst_reward, valid=False)
        told = self._object(answer, "step")
        reward = float(told.get("reward") or 0.0)
        self._check_worst(response, reward)
        outputs = [str(each["output"]) for each in (told.get("info") or {}).get("tool_outputs") or ()]
        said = str(told.get("observation") or "")
        messages = [{"role": "tool", "content": output} for output in outputs]
        messages += [{"role": "user", "content": said}] if said else []
        over, truncated = bool(told.get("terminated")), bool(told.get("truncated"))
        shown = "\n".join(message["content"] for message in messages) or "The episode is over."
        return _Came(shown, reward, over, truncated, messages=messages or None)

    def _tool(self, about: Mapping[str, Any], loop: asyncio.AbstractEventLoop) -> Tool:
        """Return an endpoint as a tool; the calls of a session are made one after the other."""

        def run(arguments: Mapping[str, Any]) -> str:
            return asyncio.run_coroutine_threadsafe(self._called(about["name"], arguments), loop).result()

        return Tool(about["name"], about["description"], about["parameters"], run, "network", lane=self)

    async def _called(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return what an endpoint answers.

        Raises:
            WrongCallError: It does not take these arguments.
            RuntimeError: It failed over them.
            UnavailableError: The server is gone, or has no time.
        """
        answer = await self._post(name, arguments)
        if answer.status_code in _REFUSED:
            raise WrongCallError(_said(answer))
        if answer.is_error:
            raise RuntimeError(_said(answer))
        return answer.text

    def _typed(self, call: ToolCall) -> ToolCall:
        """Return a call with arguments of the types that its tool takes."""
        if not call.as_text or call.name not in self._parameters:
            return call
        return replace(call, arguments=typed_arguments(call.arguments, self._parameters[call.name]), as_text=False)

    async def _begin(self) -> Mapping[str, Any]:
        """Begin a session, and return what the server says of it."""
        endpoint = "reset" if self._endpoints.steps else "seed_session"
        for attempt in range(self._attempts):
            if attempt:
                await asyncio.sleep(0.5 * 2 ** (attempt - 1))
            try:
                return self._object(await self._post(endpoint, self.task.row), endpoint)
            except UnavailableError:
                if attempt + 1 == self._attempts:
                    raise
        raise AssertionError("attempts is at least 1")

    async def _post(self, endpoint: str, body: Mapping[str, Any]) -> httpx.Response:
        """Ask an endpoint, in this session.

        Raises:
            UnavailableError: The server is gone, gives no answer in time, or says that it has none now.
        """
        assert self._client is not None  # made by start
        try:
            answer = await self._client.post(f"/{endpoint}", json=dict(body))
        except httpx.TransportError as error:
            said = f"{type(error).__name__}: {error}"
            raise UnavailableError(f"NeMo Gym server {self._url} gave no answer to {endpoint}: {said}") from error
        if answer.status_code in _BUSY:
            raise UnavailableError(f"NeMo Gym server {self._url} answers to {endpoint}: {_said(answer)}")
        return answer

    def _object(self, answer: httpx.Response, endpoint: str) -> Mapping[str, Any]:
        """Return the JSON object of an answer.

        Raises:
            UnavailableError: The server failed.
            EnvConfigError: It does not take such a task, or its answer is none.
        """
        if answer.status_code >= 500:
            raise UnavailableError(f"NeMo Gym server {self._url} failed at {endpoint}: {_said(answer)}")
        try:
            told = answer.raise_for_status().json()
        except (httpx.HTTPStatusError, ValueError) as error:
            said = f"{self._url} answers to {endpoint}: {_said(answer)}"
            raise EnvConfigError(f"the tasks do not fit the NeMo Gym server: {said}") from error
        if not isinstance(told, dict) or (endpoint == "verify" and not isinstance(told.get("reward"), int | float)):
            raise EnvConfigError(f"NeMo Gym server {self._url} gives no reward: {_said(answer)}")
        return told


@dataclass(frozen=True)
class _Came:
    """What a step came to."""

    observation: str
    reward: float = 0.0
    over: bool = False
    truncated: bool = False
    valid: bool = True
    messages: list[dict[str, str]] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Endpoints:
    """What a server can be asked; ``any`` where it takes every name."""

    names: frozenset[str]
    any: bool
    steps: bool

    def has(self, tool: str) -> bool:
        """Whether calls of a tool are answered."""
        return self.any or tool in self.names


@cache
def _trusted() -> ssl.SSLContext:
    """Return whom connections trust; once, since to read the certificates takes longer than an episode."""
    return httpx.create_ssl_context()


@lru_cache(maxsize=64)
def _asked(url: str, seconds: float) -> _Endpoints:
    """Ask a server what it can be asked; once in a process.

    Raises:
        EnvConfigError: It is no resource server, or does not answer.
    """
    with asking(url, "NeMo Gym"):
        paths = httpx.get(f"{url}/openapi.json", timeout=seconds).raise_for_status().json()["paths"]
        names = frozenset(path.removeprefix("/") for path in paths if "post" in paths[path])
    steps = {"reset", "step"} <= names
    if not steps and not {"seed_session", "verify"} <= names:
        raise EnvConfigError(
            f"url={url!r}: no resource server of NeMo Gym: it has {', '.join(sorted(names)) or 'none'}"
        )
    return _Endpoints(names, any(name.startswith("{") for name in names), steps)


def _told(task: GymTask, instruction: str | None) -> list[dict[str, str]]:
    """Return what a policy is told of a task."""
    messages = [dict(message) for message in task.messages]
    if not instruction:
        return messages
    said = messages[messages[0]["role"] == "system" :]
    return [{"role": "system", "content": instruction}, *said]


def _said(answer: httpx.Response) -> str:
    """Return why a server refuses something, with its problems in words where it names them."""
    try:
        detail = answer.json()["detail"]
        if isinstance(detail, list):
            return "; ".join(f"{'.'.join(map(str, each['loc'][1:]))}: {each['msg']}" for each in detail)
        return str(detail)
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}: {json.dumps(answer.text[:500], ensure_ascii=False)}"
