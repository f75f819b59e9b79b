"""Agent programs: a function of this process, or a command in a process of its own."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final, Protocol

from roll.envs.agent_places import Beside, Launch, Place, end
from roll.envs.errors import EnvConfigError

_SHOWN: Final = 2000
"""Characters of what a program wrote that are kept."""
_PLACE: Final = re.compile(r"\{(\w+)\}")


class AgentFailedError(RuntimeError):
    """A command ended with an error."""


class Program(Protocol):
    """An agent program."""

    def run(self, task: Any, client: Any) -> Any:
        """Run it to its end, and return what it came to; blocks."""
        ...

    def stop(self) -> None:
        """End it, from another thread."""
        ...


class Function:
    """A function of this process.

    Args:
        name: ``module:function``; the module may be in the working directory.

    Raises:
        EnvConfigError: There is none.
    """

    def __init__(self, name: str) -> None:
        self._function = _found(name)
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None

    def run(self, task: Any, client: Any) -> Any:
        """Call it; a coroutine has an event loop of its own, so that one that blocks holds up no other.

        Raises:
            AgentFailedError: It was cancelled.
        """
        if not inspect.iscoroutinefunction(self._function):
            return self._function(task, client)

        async def to_its_end() -> Any:
            current = asyncio.current_task()
            assert current is not None
            self._running = asyncio.get_running_loop(), current
            return await self._function(task, client)

        try:
            return asyncio.run(to_its_end())
        except asyncio.CancelledError:
            raise AgentFailedError("the agent was cancelled") from None
        finally:
            self._running = None

    def stop(self) -> None:
        """Cancel a coroutine; nothing can end a function that blocks, but its key is worth nothing by now."""
        running = self._running
        if running is not None and not running[0].is_closed():
            running[0].call_soon_threadsafe(running[1].cancel)


class Command:
    """A command in a process of its own.

    Args:
        words: The command; ``{name}`` stands for a column of the task, ``{folder}``, ``{model}``, or ``{here}``, the
            working directory of the run.
        environment: Further variables.
        place: Where it runs.
        calls: Whether it may reach the policy.

    Raises:
        EnvConfigError: There is no such program.
    """

    def __init__(
        self, words: Sequence[str], environment: Mapping[str, str], place: Place | None = None, calls: bool = True
    ) -> None:
        if isinstance(words, str) or not words or not all(isinstance(word, str) for word in words):
            raise EnvConfigError(f"a command is a list of words, got {words!r}")
        here = str(Path.cwd())
        words = [word.replace("{here}", here) for word in words]
        self._place = place or Beside()
        first = words[0] if "{" in words[0] else self._place.program_of(words[0])
        self._words = [first, *words[1:]]
        self._environment = {str(name): str(value) for name, value in environment.items()}
        self._calls = calls
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._lock = threading.Lock()

    def run(self, task: Any, client: Any) -> Any:
        """Run it, and return what it wrote to ``ROLL_REWARD``, with the end of what it printed as its answer.

        Raises:
            AgentFailedError: It did not end with 0, or wrote something that is no JSON.
        """
        with tempfile.TemporaryDirectory(prefix="roll-reward-") as beside:
            reward = Path(beside) / "reward.json"
            code, said, complained = self._run(task, client, [Path(beside)], {"ROLL_REWARD": str(reward)})
            if code:
                last = complained.strip() or said.strip()
                raise AgentFailedError(f"{self._words[0]} ended with {_ending(code)}: …{last[-500:]}")
            # A link would be followed with our rights.
            written = reward.read_text("utf-8") if reward.is_file() and not reward.is_symlink() else "null"
        try:
            result = json.loads(written)
        except ValueError as error:
            raise AgentFailedError(f"what the program wrote to ROLL_REWARD is no JSON: {error}") from error
        values = result if isinstance(result, dict) else {"reward": result}
        return {"answer": said[-_SHOWN:], **values}

    def passes(self, task: Any, client: Any) -> bool:
        """Run it, and return whether it ended with 0."""
        return self._run(task, client, [], {})[0] == 0

    def stop(self) -> None:
        """Kill it, and all that it started."""
        with self._lock:
            self._stopped = True
            if self._process is not None and self._process.poll() is None:
                end(self._process)

    def _run(self, task: Any, client: Any, beside: Sequence[Path], more: Mapping[str, str]) -> tuple[int, str, str]:
        """Return how it ended, and what it said on both outputs."""
        values = {**task.row, "folder": str(task.folder), "model": client.model}
        words = [filled(word, values) for word in self._words]
        told = {"ROLL_TASK": json.dumps(dict(task.row)), "ROLL_SEED": str(task.seed)}
        reaches = client.environment() if self._calls else {}
        variables = {**reaches, **told, **more, **self._environment}
        with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complained:
            # Files and not pipes: what a program leaves running in the background must not hold us up.
            launch = Launch(words, [task.folder, *beside], variables, (said, complained))
            with self._place.running(launch, client if self._calls else None) as process:
                with self._lock:
                    self._process = process
                    if self._stopped:
                        raise AgentFailedError("the agent was stopped")
                code = process.wait()
            return code, _end_of(said), _end_of(complained)


def filled(text: str, values: Mapping[str, Any]) -> str:
    """Return a text with values in the place of their names; what has no value stays."""
    return _PLACE.sub(lambda match: str(values.get(match[1], match[0])), text)


def _found(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise EnvConfigError(f"program: {name!r} is not of the form module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        found = resolve_name(name)
    except (ImportError, AttributeError) as error:
        raise EnvConfigError(f"program: {name} cannot be imported: {error}") from error
    if not callable(found):
        raise EnvConfigError(f"program: {name} is not a function")
    function: Callable[..., Any] = found
    return function


def _end_of(file: Any) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 4 * _SHOWN))
    return str(file.read().decode("utf-8", "replace"))[-_SHOWN:]


def _ending(code: int) -> str:
    # The sandbox says it as shells do.
    number = -code if code < 0 else code - 128
    return f"signal {signal.Signals(number).name}" if number in set(signal.Signals) else f"exit code {code}"
