"""A task that an agent program works at: the program plays the whole episode, and calls the policy as it likes."""

from __future__ import annotations

import functools
import json
import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

from roll.envs.agent_containers import InContainer
from roll.envs.agent_places import Beside, Place, ShutIn
from roll.envs.agent_programs import Command, Function, Program, filled
from roll.envs.base import Outcome, TextEnv
from roll.envs.errors import EnvConfigError

MANAGER = "roll.env_managers.agent.AgentEnvManager"
UNTRAINED_MODEL = "untrained"
"""The name of a model by which a program asks the policy for what is not trained, such as the part of another seat."""


@dataclass(frozen=True, slots=True)
class AgentTask:
    """What an agent is to do.

    Attributes:
        seed: The same for all members of a group.
        row: The row of ``tasks`` that the seed chose; empty without any.
        folder: Where it may work, with a copy of ``files``; deleted afterwards.
    """

    seed: int
    row: Mapping[str, Any]
    folder: Path


@dataclass(frozen=True, slots=True)
class Played:
    """What an agent came to.

    Attributes:
        reward: What the episode earned; 0 where ``rewards`` grade it.
        metrics: ``success``, and whatever else the program counted.
        answer: What it says at its end, for graders and for the review.
    """

    reward: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    answer: str = ""


class AgentEnv(TextEnv):
    """Let an agent program do a task.

    The program is a function of this process, ``async def agent(task, client) -> reward``, or a command. It calls the
    policy at an address that it is given, with a key of its own, and every call is recorded token by token.

    Args:
        program: ``module:function``. It takes an :class:`AgentTask` and a :class:`roll.gateway.AgentClient`, may be a
            coroutine, and returns a number, or a mapping with ``reward`` and perhaps ``success``, ``answer`` and more
            numbers.
        command: Words of a command instead; ``{name}`` stands for a column of the task's row, ``{folder}`` and
            ``{model}`` for these. It finds the task as JSON in ``ROLL_TASK``, its seed in ``ROLL_SEED``, the policy in
            ``OPENAI_BASE_URL``, ``OPENAI_API_KEY``, ``ANTHROPIC_BASE_URL`` and ``ANTHROPIC_API_KEY``, and writes what
            the program above returns to the file ``ROLL_REWARD``, as JSON.
        check: Words of a command that is run in the folder afterwards: the reward is 1 where it ends with 0, else 0.
        check_files: A folder whose content replaces what is there of the same names before the check: whatever the
            program made of tests counts for nothing.
        sandbox: Whether ``command`` and ``check`` are shut in; a mapping says what they see and may use: see
            :class:`roll.envs.agent_places.ShutIn`.
        container: An image of Docker or Podman that they run in instead, or a mapping with it and more: see
            :class:`roll.envs.agent_containers.InContainer`.
        tasks: Files of JSON lines; the seed chooses one.
        files: A folder that is copied to where the program works; ``{name}`` stands for a column of the task's row,
            here and in ``check_files``.
        environment: Further variables of the environment of commands.
        timeout: Seconds for an episode.
        graded: Whether ``rewards`` grade the episode, so that the program need not.

    Raises:
        EnvConfigError: There is no such program, or nothing says what an episode earns.
    """

    env_manager_cls = MANAGER

    def __init__(
        self,
        *,
        program: str | None = None,
        command: Sequence[str] | None = None,
        check: Sequence[str] | None = None,
        check_files: str | None = None,
        sandbox: bool | Mapping[str, Any] = False,
        container: str | Mapping[str, Any] | None = None,
        tasks: str | Sequence[str] | None = None,
        files: str | None = None,
        environment: Mapping[str, str] | None = None,
        timeout: float = 600.0,
        graded: bool = False,
        max_steps: int | None = None,
    ) -> None:
        super().__init__(max_steps=max_steps, render_mode=None)
        if (program is None) == (command is None):
            raise EnvConfigError("name the agent by either program: module:function, or command: [word, …]")
        if not timeout > 0:
            raise EnvConfigError(f"timeout={timeout}: must be greater than 0 seconds")
        place, told = _place_of(sandbox, container, program is not None), environment or {}
        self.timeout = timeout
        self._program: Program = Function(program) if program is not None else Command(command or (), told, place)
        self._check = None if check is None else Command(check, told, place, calls=False)
        self._rows = _rows((tasks,) if isinstance(tasks, str) else tuple(tasks or ()))
        self._files, self._check_files = files, check_files
        for row in self._rows or [{}]:
            self._folder_of("files", files, row)
            self._folder_of("check_files", check_files, row)
        self._graded = graded
        self._task: AgentTask | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Choose a task, and prepare the folder for it; see :meth:`TextEnv.reset`."""
        self._seeded(seed)
        row = self._rows[int(self.np_random.integers(len(self._rows)))] if self._rows else {}
        self._remove_folder()
        folder = Path(tempfile.mkdtemp(prefix="roll-agent-"))
        source = self._folder_of("files", self._files, row)
        if source is not None:
            shutil.copytree(source, folder, dirs_exist_ok=True)
        self._task = AgentTask(0 if seed is None else seed, row, folder)
        # What members of a group have in common: where nothing else does, the seed is the task.
        return self._begun(json.dumps(row, ensure_ascii=False) if row else f"seed {seed}")

    def play(self, client: Any) -> Played:
        """Let the program work until it ends; blocks.

        Args:
            client: How it reaches the policy.

        Raises:
            Exception: What the program raised, or what is wrong with what it came to.
        """
        assert self._task is not None  # the manager resets first
        result = self._program.run(self._task, client)
        if self._check is None:
            return self._played(result)
        self._replace_checked()
        passed = self._check.passes(self._task, client)
        beside = result if isinstance(result, Mapping) else {}
        return self._played({"success": passed, **beside, "reward": float(passed)})

    def stop(self) -> None:
        """End the program, from another thread."""
        self._program.stop()
        if self._check is not None:
            self._check.stop()

    def act(self, action: str) -> Outcome:
        """Refuse: nobody acts in the program's place.

        Raises:
            EnvConfigError: Always.
        """
        raise EnvConfigError("an agent program plays by itself: it is run by a pipeline, or by roll eval, not played")

    def close(self) -> None:
        """Delete the folder."""
        self._remove_folder()

    @staticmethod
    def _folder_of(option: str, folder: str | None, row: Mapping[str, Any]) -> Path | None:
        """Return the folder that is meant for a task.

        Raises:
            EnvConfigError: There is none.
        """
        if folder is None:
            return None
        path = Path(filled(folder, row))
        if not path.is_dir():
            raise EnvConfigError(f"{option}: there is no folder {path}")
        return path

    def _replace_checked(self) -> None:
        assert self._task is not None
        folder = self._folder_of("check_files", self._check_files, self._task.row)
        for source in sorted(folder.iterdir()) if folder is not None else ():
            target = self._task.folder / source.name
            # A link that the program left there would lead out of the folder.
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                shutil.copy2(source, target)

    def _played(self, result: Any) -> Played:
        values = dict(result) if isinstance(result, Mapping) else {"reward": result}
        answer, reward = str(values.pop("answer", "")), values.pop("reward", None)
        if reward is None and self._graded:
            reward = 0.0
        elif reward is None:
            raise ValueError(
                "the agent returned no reward: return a number, set check:, or set graded: true where rewards: grade it"
            )
        metrics = {str(name): _number(str(name), value) for name, value in values.items()}
        earned = _number("the reward", reward)
        return Played(earned, {"success": float(earned > 0), **metrics}, answer)

    def _remove_folder(self) -> None:
        if self._task is not None:
            shutil.rmtree(self._task.folder, ignore_errors=True)


def _place_of(sandbox: bool | Mapping[str, Any], container: str | Mapping[str, Any] | None, is_function: bool) -> Place:
    """Return where commands run.

    Raises:
        EnvConfigError: An option is wrong, or both are set.
    """
    inside = isinstance(sandbox, Mapping) or sandbox
    if inside and container is not None:
        raise EnvConfigError("sandbox and container are both set: a command runs in one of them")
    if is_function and (inside or container is not None):
        option = "sandbox" if inside else "container"
        raise EnvConfigError(f"{option}: a function of this process cannot be shut in; give a command")
    if container is not None:
        return InContainer(container)
    return ShutIn(sandbox if isinstance(sandbox, Mapping) else {}) if inside else Beside()


def _number(name: str, value: object) -> float:
    if not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"the agent returned {value!r} as {name}: it must be a finite number")
    return float(value)


@functools.lru_cache(maxsize=16)
def _rows(names: tuple[str, ...]) -> list[Mapping[str, Any]]:
    """Return the rows of files of JSON lines.

    Raises:
        EnvConfigError: One cannot be read.
    """
    from roll.config.shipped import shipped_data

    rows: list[Mapping[str, Any]] = []
    for name in names:
        try:
            lines = shipped_data(Path(name)).read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise EnvConfigError(f"tasks: {name} cannot be read: {error}") from error
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise EnvConfigError(f"tasks: {name}, line {number} is no JSON: {error}") from error
            if not isinstance(row, dict):
                raise EnvConfigError(f"tasks: {name}, line {number} is no JSON object")
            rows.append(row)
    if names and not rows:
        raise EnvConfigError(f"tasks: there are none in {', '.join(names)}")
    return rows
