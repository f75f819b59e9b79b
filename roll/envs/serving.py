"""Our environments as a server that OpenEnv's clients can ask: a session, and so an environment, per WebSocket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from inspect import isawaitable
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

_TEXT: Final = {"type": "string"}
_ACTION: Final = {
    "title": "Response",
    "type": "object",
    "properties": {"response": {**_TEXT, "description": "What the policy writes; the environment finds its action."}},
    "required": ["response"],
}
_OBSERVATION: Final = {
    "title": "Observation",
    "type": "object",
    "properties": {
        "text": {**_TEXT, "description": "What the policy sees."},
        "instruction": {"anyOf": [_TEXT, {"type": "null"}], "description": "The rules; after a reset."},
        "success": {"type": "boolean"},
        "done": {"type": "boolean"},
        "reward": {"type": "number"},
    },
}
_STATE: Final = {"title": "State", "type": "object", "properties": {"step_count": {"type": "integer"}}}


class EnvServer:
    """Serves the environments of a tag.

    Args:
        make: Returns a new environment.
        name: What it is called.
        description: What it is.
        most: Sessions at a time.
    """

    def __init__(self, make: Callable[[], Any], name: str, description: str, most: int = 256) -> None:
        self._make = make
        self._name, self._description = name, description
        self._most = most
        self._sessions = 0

    def app(self) -> Starlette:
        """Return the web application."""
        said: dict[str, Mapping[str, Any]] = {
            "/health": {"status": "healthy"},
            "/metadata": {"name": self._name, "description": self._description},
            "/schema": {"action": _ACTION, "observation": _OBSERVATION, "state": _STATE},
        }

        def saying(what: Mapping[str, Any]) -> Callable[[Request], Response]:
            return lambda request: JSONResponse(what)

        routes = [Route(path, saying(what)) for path, what in said.items()]
        return Starlette(routes=[*routes, WebSocketRoute("/ws", self.session)])

    async def session(self, socket: WebSocket) -> None:
        """Play with one client until it leaves."""
        await socket.accept()
        if self._sessions >= self._most:
            await socket.send_text(_error("CAPACITY_REACHED", f"all {self._most} sessions are taken"))
            await socket.close()
            return
        self._sessions += 1
        session = _Session(self._make)
        try:
            while (answer := await session.answer(await socket.receive_text())) is not None:
                await socket.send_text(answer)
            await socket.close()
        except WebSocketDisconnect:
            return
        finally:
            self._sessions -= 1
            await session.close()


class _Session:
    """One environment."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._env: Any = None
        self._steps = 0

    async def answer(self, text: str) -> str | None:
        """Return the answer to a message; ``None`` where it says goodbye."""
        try:
            message = json.loads(text)
            kind, data = message["type"], message.get("data") or {}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return _error("INVALID_JSON", f"expected an object with type and data: {error}")
        try:
            match kind:
                case "close":
                    return None
                case "reset":
                    return await self._reset(data.get("seed"))
                case "step" if isinstance(data.get("response"), str):
                    return await self._step(data["response"])
                case "step":
                    wrong = {"loc": ["response"], "msg": "a text is required", "type": "missing"}
                    return _error("VALIDATION_ERROR", "an action is {response: text}", [wrong])
                case "state":
                    return json.dumps({"type": "state", "data": {"step_count": self._steps}})
        except Exception as error:  # the environment's; its client is told
            return _error("EXECUTION_ERROR", f"{type(error).__name__}: {error}")
        return _error("UNKNOWN_TYPE", f"unknown message {kind!r}")

    async def close(self) -> None:
        """Close the environment."""
        if self._env is not None:
            await _called(self._env.close)

    async def _reset(self, seed: int | None) -> str:
        if self._env is None:
            self._env = await asyncio.to_thread(self._make)
        self._steps = 0
        observation, info = await _called(lambda: self._env.reset(seed=seed))
        return _observed(observation, 0.0, False, info, getattr(self._env, "instruction", ""))

    async def _step(self, response: str) -> str:
        if self._env is None:
            return _error("EXECUTION_ERROR", "reset first")
        observation, reward, terminated, truncated, info = await _called(lambda: self._env.step(response))
        self._steps += 1
        return _observed(observation, float(reward), bool(terminated or truncated), info, None)


async def _called(function: Callable[[], Any]) -> Any:
    """Call in a thread, and await what is to be awaited."""
    result = await asyncio.to_thread(function)
    return await result if isawaitable(result) else result


def _observed(text: str, reward: float, done: bool, info: Mapping[str, Any], instruction: str | None) -> str:
    success = bool(info.get("metrics", {}).get("success", 0.0))
    observation = {"text": text, "instruction": instruction, "success": success}
    return json.dumps({"type": "observation", "data": {"observation": observation, "reward": reward, "done": done}})


def _error(code: str, message: str, errors: list[dict[str, Any]] | None = None) -> str:
    return json.dumps({"type": "error", "data": {"code": code, "message": message, "errors": errors or []}})
