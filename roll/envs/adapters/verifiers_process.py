"""The process in which a `verifiers` taskset is played, one for all episodes of a process of ours."""

from __future__ import annotations

import itertools
import json
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from functools import cache
from pathlib import Path
from typing import Any, Final

from roll.common.unavailable import UnavailableError
from roll.envs.agent_programs import AgentFailedError
from roll.envs.errors import EnvConfigError

_PROGRAM: Final = Path(__file__).with_name("verifiers_program.py")
_SHOWN: Final = 1500
"""Characters of what it wrote that an error shows."""


class TasksetProcess:
    """A process that plays a taskset; it ends with ours, or with :meth:`close`.

    Args:
        python: The Python of the environment in which verifiers is installed.
        told: What it is to play, as JSON: see :class:`roll.envs.adapters.verifiers_program.Stage`.

    Attributes:
        tasks: How many tasks there are.

    Raises:
        EnvConfigError: There is no such Python, or verifiers cannot load the taskset.
    """

    def __init__(self, python: str, told: str) -> None:
        self._log = tempfile.TemporaryFile()
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        try:
            self._process = subprocess.Popen(
                [python, str(_PROGRAM), told],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                encoding="utf-8",
                start_new_session=True,
            )
        except OSError as error:
            raise EnvConfigError(f"python: {python} cannot be started: {error}") from error
        first = self._line()
        if first is None or "error" in first:
            self.close()
            raise EnvConfigError(f"verifiers: {first['error'] if first else self._ending()}")
        self.tasks = int(first["tasks"])
        threading.Thread(target=self._listen, name="verifiers", daemon=True).start()

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked for episodes."""
        return self._process.poll() is None

    def begin(self, index: int, client: Any) -> tuple[int, Future[dict[str, Any]]]:
        """Ask for an episode.

        Args:
            index: Of the task.
            client: Where the policy answers.

        Returns:
            The number of the episode, and what becomes ``reward``, ``metrics`` and ``answer``.

        Raises:
            UnavailableError: The process has ended.
        """
        number, outcome = next(self._numbers), Future[dict[str, Any]]()
        reach = {"base_url": client.base_url, "api_key": client.api_key, "model": client.model}
        self._waiting[number] = outcome
        self._tell({"id": number, "index": index, **reach})
        return number, outcome

    def stop(self, number: int) -> None:
        """Give an episode up."""
        outcome = self._waiting.pop(number, None)
        if outcome is not None:
            _settle(outcome, AgentFailedError("the agent was stopped"))
            if self.is_alive:
                self._tell({"cancel": number})

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _tell(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            with self._lock:
                self._process.stdin.write(json.dumps(message) + "\n")
                self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise UnavailableError(f"verifiers: {self._ending()}") from error

    def _line(self) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        read: dict[str, Any] | None = json.loads(line) if line else None
        return read

    def _listen(self) -> None:
        while (answer := self._line()) is not None:
            outcome = self._waiting.pop(answer.pop("id"), None)
            if outcome is not None:
                _settle(outcome, AgentFailedError(answer["error"]) if "error" in answer else answer)
        self._process.wait()
        while self._waiting:
            _settle(self._waiting.popitem()[1], UnavailableError(f"verifiers: {self._ending()}"))

    def _ending(self) -> str:
        code = self._process.wait()
        end = self._log.seek(0, 2)
        self._log.seek(max(0, end - _SHOWN))
        return f"its process ended with {code}: …{self._log.read().decode('utf-8', 'replace').strip()}"


_starting = threading.Lock()


def process_of(python: str, told: str) -> TasksetProcess:
    """Return the process that plays a taskset, started where there is none that lives.

    Raises:
        EnvConfigError: See :class:`TasksetProcess`.
    """
    with _starting:
        process = _started(python, told)
        if not process.is_alive:
            _started.cache_clear()
            process = _started(python, told)
        return process


@cache
def _started(python: str, told: str) -> TasksetProcess:
    return TasksetProcess(python, told)


def _settle(outcome: Future[dict[str, Any]], result: dict[str, Any] | Exception) -> None:
    try:
        if isinstance(result, Exception):
            outcome.set_exception(result)
        else:
            outcome.set_result(result)
    except InvalidStateError:  # it was stopped meanwhile
        return
