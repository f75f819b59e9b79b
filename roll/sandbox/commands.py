"""Commands that are shut in: an agent, the shell that it calls, and whatever these start."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from roll.sandbox.records import SandboxUnavailableError
from roll.sandbox.run import FIRST_USER
from roll.sandbox.starting import start_inside


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """What each process of a command may use; there is no limit of time, whoever starts it ends it.

    Attributes:
        memory_mb: Address space, in MiB.
        file_mb: Size of a file, its output included, and of all temporary files together; in MiB.
        open_files: Open files.
        processes: Processes and threads of the whole sandbox; not counted where the user stays root.
    """

    memory_mb: int = 8192
    file_mb: int = 256
    open_files: int = 1024
    processes: int = 512

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"CommandLimits.{name} is {getattr(self, name)}; it must be positive")


@dataclass(frozen=True, kw_only=True)
class Enclosure:
    """What a command sees of this machine: system libraries, and what is named here.

    Attributes:
        folder: Where it works.
        writable: Folders that it may change, ``folder`` among them or not.
        readable: Further files and folders that it may read: interpreters, packages, scripts.
        port: Where on its loopback interface it reaches what is outside; 0 for no network at all.
        user: The user that it becomes where this process is root; folders that it may change are given to that user.
        limits: What it may use.
    """

    folder: Path
    writable: Sequence[Path] = ()
    readable: Sequence[Path] = ()
    port: int = 0
    user: int = field(default_factory=lambda: FIRST_USER + secrets.randbelow(1 << 24))
    limits: CommandLimits = field(default_factory=CommandLimits)

    def start(
        self, words: Sequence[str], environment: Mapping[str, str], stdout: IO[bytes], stderr: IO[bytes]
    ) -> tuple[subprocess.Popen[bytes], socket.socket | None]:
        """Start a command; killing the process that is returned kills all that the command started.

        Args:
            words: The program, with its folder, and its arguments.
            environment: All of its environment.
            stdout: Where its output goes.
            stderr: Where its error output goes.

        Returns:
            The process, whose exit code is that of the command (128 and the signal where one ended it), and the
            socket that listens at ``port`` in the command's network: what is served there is what it reaches.

        Raises:
            SandboxUnavailableError: This machine cannot shut it in.
            SandboxError: The sandbox failed.
        """
        if not sys.platform.startswith("linux"):
            raise SandboxUnavailableError(f"the sandbox needs Linux; this is {sys.platform}")
        with tempfile.TemporaryDirectory(prefix="roll-sandbox-") as root:
            wanted = self._wanted(words, environment, root)
            return start_inside("enclosure", wanted, stdout, stderr, "this machine cannot shut a command in")

    def _wanted(self, words: Sequence[str], environment: Mapping[str, str], root: str) -> dict[str, Any]:
        writable = [str(path) for path in dict.fromkeys([self.folder, *self.writable])]
        return {
            "parent": os.getpid(),
            "root": root,
            "folder": str(self.folder),
            "writable": writable,
            "readable": [str(path) for path in self.readable],
            "user": self.user,
            "room_mb": self.limits.file_mb,
            "port": self.port,
            "limits": asdict(self.limits),
            "words": list(words),
            "environment": dict(environment),
        }


def needed_by(program: str) -> list[Path]:
    """Return what a program needs beside system libraries: its folder, or the environments of Python that it is in.

    Args:
        program: Its path, the folders of it resolved.
    """
    folder = Path(program).parent
    found = [folder]
    marker = folder.parent / "pyvenv.cfg"
    if marker.is_file():
        found = [folder.parent]
        for line in marker.read_text("utf-8").splitlines():
            name, _, value = line.partition("=")
            if name.strip() == "home":
                # An environment may have been made by the Python of another one.
                home = Path(value.strip())
                found += [home.resolve().parent, *(needed_by(str(home / "python")) if home != folder else [])]
    # Where its symbolic link leads.
    base = Path(program).resolve().parent.parent
    return list(dict.fromkeys([*found, *([base] if base != Path("/") else [])]))
