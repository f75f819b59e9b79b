"""Commands in containers of Docker or Podman: started, reached from outside, and gone when their time is over."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from roll.sandbox.container_programs import ContainerProgram
from roll.sandbox.records import SandboxError, SandboxUnavailableError
from roll.sandbox.starting import start_inside

OWN_NETWORK: Final = "none"
"""A network with nothing in it."""
HOST_NETWORK: Final = "host"
"""That of this machine."""
_SECONDS: Final = 60.0
"""How long a container may take until it has begun."""
_SHOWN: Final = 500
"""Characters of a complaint that are kept."""
_MARK: Final = "ROLL_CONTAINER"
"""Variable by which the first process of a container is known."""
_OURS: Final = ("OPENAI_", "ANTHROPIC_", "ROLL_")
"""Beginnings of variables that no program for containers heeds."""
_FIRST_PROCESS: Final = """
: >"$0/began"
read -r _ || exit 125
exec 3<&0 </dev/null
{ read -r _ <&3; : >"$0/lost"; kill -KILL -1; } 2>/dev/null &
"$@" 3<&-
code=$?
echo "$code" >"$0/ended"
exit "$code"
"""
"""Waits until it may begin, and kills the command when nobody holds its standard input any longer."""


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """What a container may use; there is no limit of time, whoever starts it ends it.

    Attributes:
        memory_mb: Memory of all its processes together, in MiB; ``None``: what the program for containers gives.
        processes: Its processes and threads; ``None`` likewise.
    """

    memory_mb: int | None = 8192
    processes: int | None = 512

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value <= 0):
                raise ValueError(f"{name} is {value!r}; it must be a positive whole number, or null for no limit")


@dataclass(frozen=True, kw_only=True)
class Container:
    """What a command sees: an image, and what is mounted into it under the name that it has outside.

    Attributes:
        program: What runs it.
        image: Its root folder, with ``/bin/sh``; entry points of images are not called.
        folder: Where the command works.
        writable: Folders that it may change, ``folder`` among them or not.
        readable: Further files and folders that it may read.
        network: ``none``, ``host``, or a name that the program knows.
        port: Where on its loopback interface it reaches what is outside; 0 for nowhere.
        limits: What it may use.
        options: Further options of ``run``.
    """

    program: ContainerProgram
    image: str
    folder: Path
    writable: Sequence[Path] = ()
    readable: Sequence[Path] = ()
    network: str = OWN_NETWORK
    port: int = 0
    limits: ContainerLimits = field(default_factory=ContainerLimits)
    options: Sequence[str] = ()

    @contextmanager
    def running(
        self, words: Sequence[str], environment: Mapping[str, str], stdout: IO[bytes], stderr: IO[bytes]
    ) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket | None]]:
        """Run a command; whatever of it still runs when the block ends is killed, and the container removed.

        Killing the process, or this one, kills all that the command started.

        Args:
            words: The program, as the image knows it, and its arguments.
            environment: Variables that it sees beside those of the image.
            stdout: Where its output goes.
            stderr: Where its error output goes, which can be read.

        Yields:
            The process, whose exit code is that of the command (128 and the signal where one ended it), and the
            socket that listens at ``port`` in the container's network: what is served there is what it reaches. There
            is none in the network of this machine.

        Raises:
            SandboxUnavailableError: Its network cannot be entered.
            SandboxError: It could not begin, or went away before its command ended.
        """
        name = f"roll-{secrets.token_hex(8)}"
        with tempfile.TemporaryDirectory(prefix=f"{name}-") as control:
            told = {**environment, _MARK: name}
            ours = {key: value for key, value in told.items() if key.startswith(_OURS)}
            process: _Client | None = None
            try:
                self.program.ask("create", *self._options(name, control, told), *words, environment=ours)
                process = _Client(self.program, name, Path(control), stdout, stderr)
                process.wait_for_begin()
                listener = self._listener(name, stderr) if self.port and self.network != HOST_NETWORK else None
                process.let_go_on()
                yield process, listener
                if process.poll() is not None and not process.command_ended:
                    raise SandboxError(f"the container went away before its command ended: {_end_of(stderr)}")
            finally:
                if process is not None:
                    process.end()
                if process is None or not process.command_ended:
                    self._remove(name)

    def _options(self, name: str, control: str, environment: Mapping[str, str]) -> list[str]:
        """Return the options of a container, its image, and the beginning of its command."""
        writable = dict.fromkeys([str(self.folder), *map(str, self.writable), control])
        mounts = [(path, "") for path in writable] + [(str(path), ",readonly") for path in self.readable]
        limits = {"memory": self.limits.memory_mb and f"{self.limits.memory_mb}m", "pids-limit": self.limits.processes}
        # The keys among them are not for the list of processes.
        told = [key if key.startswith(_OURS) else f"{key}={value}" for key, value in environment.items()]
        return [
            "--rm",
            "--interactive",
            f"--name={name}",
            f"--label=roll={self.folder.name}",
            "--pull=never",
            "--log-driver=none",
            f"--network={self.network}",
            "--cap-drop=all",
            "--security-opt=no-new-privileges",
            # What is mounted keeps the labels of SELinux that it has outside.
            "--security-opt=label=disable",
            f"--user={self.program.user}",
            *(f"--{limit}={value}" for limit, value in limits.items() if value is not None),
            *(f"--mount=type=bind,source={path},target={path}{more}" for path, more in mounts),
            f"--workdir={self.folder}",
            *(f"--env={variable}" for variable in told),
            "--entrypoint=/bin/sh",
            *self.options,
            self.image,
            "-c",
            _FIRST_PROCESS,
            control,
        ]

    def _listener(self, name: str, stderr: IO[bytes]) -> socket.socket:
        """Return a socket that listens in the network of a container.

        Raises:
            SandboxUnavailableError: The network cannot be entered.
        """
        refusal = (
            "the network of a container cannot be entered; give it that of this machine (network: host), "
            "or use Podman as the user of the run"
        )
        number = int(self.program.ask("inspect", "--format", "{{.State.Pid}}", name))
        try:
            variables = Path(f"/proc/{number}/environ").read_bytes().split(b"\0")
        except OSError as error:
            raise SandboxUnavailableError(f"{refusal}: {error}") from error
        if f"{_MARK}={name}".encode() not in variables:
            raise SandboxUnavailableError(f"{refusal}: it runs on another machine than {self.program.path}")
        wanted = {"process": number, "port": self.port}
        helper, listener = start_inside("loopback", wanted, subprocess.DEVNULL, stderr, refusal)
        helper.wait()
        assert listener is not None
        return listener

    def _remove(self, name: str) -> None:
        """Kill a container, and remove it; it may be gone already, or go at this moment."""
        for words in (("kill", name), ("rm", "--force", name)):
            with contextlib.suppress(SandboxError):
                self.program.ask(*words)


class _Client(subprocess.Popen[bytes]):
    """The process that starts a container and passes on what is said.

    Args:
        program: What runs the container.
        name: Of the container.
        control: A folder in which the container's first process says how far it is.
        stdout: Where output goes.
        stderr: Where error output goes.
    """

    def __init__(
        self, program: ContainerProgram, name: str, control: Path, stdout: IO[bytes], stderr: IO[bytes]
    ) -> None:
        words = [program.path, "start", "--attach", "--interactive", name]
        # Podman's monitor leaves a file where it was started when the kernel was short of memory.
        super().__init__(
            words, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, cwd=control, start_new_session=True
        )
        self._control = control
        self._said = stderr

    def wait_for_begin(self) -> None:
        """Wait until the container has begun.

        Raises:
            SandboxError: It does not.
        """
        end = time.monotonic() + _SECONDS
        while not (self._control / "began").exists():
            if self.poll() is not None:
                said = _end_of(self._said)
                raise SandboxError(f"the container could not begin, for which its image needs /bin/sh: {said}")
            if time.monotonic() > end:
                raise SandboxError(f"the container did not begin within {_SECONDS:g} s: {_end_of(self._said)}")
            time.sleep(0.01)

    def let_go_on(self) -> None:
        """Let the command begin."""
        assert self.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone, and did not end
            self.stdin.write(b"\n")
            self.stdin.flush()

    @property
    def command_ended(self) -> bool:
        """Whether the container is over because its command came to an end."""
        # A command that writes there that it has ended does not end this process.
        there, lost = (self._control / "ended").is_file(), (self._control / "lost").exists()
        return self.returncode is not None and self.returncode >= 0 and there and not lost

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code of the command, which not every server of Docker's interface passes on."""
        code = super().wait(timeout)
        if not self.command_ended:
            return code
        with (self._control / "ended").open("rb") as file:
            written = file.read(8).strip()
        return int(written) if written.isdigit() else code

    def end(self) -> None:
        """End this process, and let go of the container's input."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.wait()
        assert self.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()


def _end_of(stderr: IO[bytes]) -> str:
    stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _SHOWN))
    return stderr.read().decode("utf-8", "replace").strip()
