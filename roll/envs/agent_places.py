"""Where the command of an agent runs: beside us, or shut in."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any, Final, Protocol

from roll.envs.errors import EnvConfigError
from roll.sandbox import CommandLimits, Enclosure, needed_by
from roll.sandbox.run import FIRST_USER

_PASSED: Final = ("PATH", "LANG", "LC_ALL", "TZ", "TERM")
"""Variables of ours that a command in the sandbox sees."""
_OTHERS: Final = frozenset({"ANTHROPIC_AUTH_TOKEN", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"})
"""Variables that would lead clients elsewhere, or lend them another's name."""
_LIMITS: Final = frozenset(limit.name for limit in fields(CommandLimits))


@dataclass(frozen=True, slots=True)
class Launch:
    """A command to run.

    Attributes:
        words: Its words.
        folders: Where it works, and further folders that it writes to.
        variables: What it is told beside its environment.
        outputs: Where its output and its error output go.
    """

    words: Sequence[str]
    folders: Sequence[Path]
    variables: Mapping[str, str]
    outputs: tuple[IO[bytes], IO[bytes]]


class Place(Protocol):
    """Where a command runs."""

    def program_of(self, word: str) -> str:
        """Return the program that the first word of a command names there.

        Raises:
            EnvConfigError: There is none.
        """
        ...

    def running(self, launch: Launch, client: Any) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """Start a command, and end all that it started when the block ends.

        Args:
            launch: The command, and what it is given.
            client: How it reaches the policy; ``None`` where it has no business there.
        """
        ...


class Beside:
    """A process like any other: it may do what we may."""

    def program_of(self, word: str) -> str:
        """See :class:`Place`."""
        return _found(word)

    @contextmanager
    def running(self, launch: Launch, client: Any) -> Iterator[subprocess.Popen[bytes]]:
        """See :class:`Place`."""
        own = {name: value for name, value in os.environ.items() if name not in _OTHERS}
        process = subprocess.Popen(
            launch.words,
            cwd=launch.folders[0],
            env={**own, **launch.variables},
            stdin=subprocess.DEVNULL,
            stdout=launch.outputs[0],
            stderr=launch.outputs[1],
            start_new_session=True,
        )
        try:
            yield process
        finally:
            end(process)


class ShutIn:
    """The sandbox: it sees its folders, system libraries and its own program, and reaches the policy alone.

    Args:
        options: ``read``, further files and folders that it sees, and limits of :class:`roll.sandbox.CommandLimits`.

    Raises:
        EnvConfigError: There is no such option, or no such file.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        given = dict(options)
        read = given.pop("read", ())
        self._readable = [Path(path).resolve() for path in ([read] if isinstance(read, str) else read)]
        missing = [str(path) for path in self._readable if not path.exists()]
        if missing:
            raise EnvConfigError(f"sandbox.read: there is no {', '.join(missing)}")
        if unknown := sorted(given.keys() - _LIMITS):
            raise EnvConfigError(f"sandbox has no option {unknown[0]}: it has read, {', '.join(sorted(_LIMITS))}")
        try:
            self._limits = CommandLimits(**given)
        except (TypeError, ValueError) as error:
            raise EnvConfigError(f"sandbox: {error}") from error
        self._user = FIRST_USER + secrets.randbelow(1 << 24)

    def program_of(self, word: str) -> str:
        """See :class:`Place`."""
        return _found(word)

    @contextmanager
    def running(self, launch: Launch, client: Any) -> Iterator[subprocess.Popen[bytes]]:
        """See :class:`Place`."""
        enclosure = Enclosure(
            folder=launch.folders[0],
            writable=launch.folders[1:],
            readable=[*needed_by(launch.words[0]), *self._readable],
            port=0 if client is None else client.port,
            user=self._user,
            limits=self._limits,
        )
        passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
        home = {"HOME": "/tmp", "TMPDIR": "/tmp"}
        process, listener = enclosure.start(launch.words, {**passed, **home, **launch.variables}, *launch.outputs)
        try:
            if listener is None:
                yield process
            else:
                with client.answering_at(listener):
                    yield process
        finally:
            end(process)


def _found(word: str) -> str:
    """Return a program of this machine, wherever it will be started from.

    Raises:
        EnvConfigError: There is none.
    """
    if word in ("python", "python3"):
        return sys.executable
    found = shutil.which(word)
    if found is None:
        raise EnvConfigError(f"command: there is no program {word!r} on this machine")
    # Its own name stays, for an environment of Python is known by it; links to its folder do not.
    path = Path(found)
    return str(path.parent.resolve() / path.name)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a command, and what it left running."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
