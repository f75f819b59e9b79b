"""Tasksets of `verifiers` (v1), played and scored by that package in a process of its own."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roll.envs.adapters.verifiers_process import TasksetProcess, process_of
from roll.envs.agent import MANAGER, UNTRAINED_MODEL, Played
from roll.envs.agent_programs import AgentFailedError
from roll.envs.base import Outcome, TextEnv
from roll.envs.errors import EnvConfigError


class VerifiersEnv(TextEnv):
    """Do a task of a taskset of the package verifiers (v1).

    Its harness plays, its tools and users answer, and its rewards score; the policy is asked through the gateway, which
    records every call token by token. The package need not be installed here. One process plays all episodes.

    Args:
        taskset: The id of the taskset, or verifiers' block with ``id`` and further options.
        env: Further options of verifiers' ``env`` block: ``id`` of an environment, and its seats. A seat that says
            nothing else runs on this machine (``runtime: {type: subprocess}``) in a chat with the taskset's tools, and
            has ``max_steps`` turns.
        select: Which tasks: verifiers' ``select`` block, such as ``{limit: 100}``.
        python: The Python of an environment in which verifiers is installed.
        paths: Folders in which tasksets are found that are not installed there.
        timeout: Seconds for an episode.
        max_steps: Answers of the policy in an episode.

    Raises:
        EnvConfigError: There is no such Python, no such taskset or no such option of it.
    """

    env_manager_cls = MANAGER

    def __init__(
        self,
        *,
        taskset: str | Mapping[str, Any],
        env: Mapping[str, Any] | None = None,
        select: Mapping[str, Any] | None = None,
        python: str = ".venv/verifiers/bin/python",
        paths: str | Sequence[str] = (),
        timeout: float = 600.0,
        max_steps: int | None = None,
    ) -> None:
        super().__init__(max_steps=max_steps, render_mode=None)
        if not timeout > 0:
            raise EnvConfigError(f"timeout={timeout}: must be greater than 0 seconds")
        block = {"id": taskset} if isinstance(taskset, str) else dict(taskset)
        if not block.get("id"):
            raise EnvConfigError("taskset: name it by its id, as verifiers does")
        folders = [Path(path).absolute() for path in ([paths] if isinstance(paths, str) else paths)]
        for folder in folders:
            if not folder.is_dir():
                raise EnvConfigError(f"paths: there is no folder {folder}")
        self.timeout = timeout
        self._name = str(block["id"])
        self._python = str(Path(python).absolute()) if "/" in python else python
        told = {
            "env": {**(env or {}), "taskset": block},
            "select": dict(select or {}),
            "paths": [str(folder) for folder in [*folders, Path.cwd()]],
            "max_turns": max_steps,
            "untrained": UNTRAINED_MODEL,
        }
        self._told = json.dumps(told, sort_keys=True)
        self._process = process_of(self._python, self._told)
        self._index = 0
        self._playing: tuple[TasksetProcess, int] | None = None
        self._stopped = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Choose a task; see :meth:`TextEnv.reset`."""
        self._seeded(seed)
        self._index = int(self.np_random.integers(self._process.tasks))
        return self._begun(f"{self._name}: task {self._index}")

    def play(self, client: Any) -> Played:
        """Let verifiers play the task and score it; blocks.

        Args:
            client: How it reaches the policy.

        Raises:
            AgentFailedError: The episode failed there, or was not scored.
            UnavailableError: The process ended.
        """
        process = process_of(self._python, self._told)
        number, outcome = process.begin(self._index, client)
        self._playing = process, number
        if self._stopped:
            self.stop()
        error = outcome.exception()
        if error is not None:
            raise error
        result = outcome.result()
        reward, metrics = result["reward"], result["metrics"]
        for name, value in {"reward": reward, **metrics}.items():
            if not math.isfinite(value):
                raise AgentFailedError(f"verifiers returned {value} as {name}: it must be a finite number")
        return Played(reward, {"success": float(reward > 0), **metrics}, result["answer"])

    def stop(self) -> None:
        """End the episode, from another thread."""
        self._stopped = True
        if self._playing is not None:
            process, number = self._playing
            process.stop(number)

    def act(self, action: str) -> Outcome:
        """Refuse: nobody acts in the place of verifiers' harness.

        Raises:
            EnvConfigError: Always.
        """
        raise EnvConfigError("a taskset plays by itself: it is run by a pipeline, or by roll eval, not played")
