"""What the sandbox is asked for and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal


class SandboxError(RuntimeError):
    """The sandbox itself failed: nothing is known about the program."""


class SandboxUnavailableError(SandboxError):
    """This machine cannot give the protection that was asked for."""


class Reason(StrEnum):
    """How a program ended."""

    OK = "ok"
    """Exit code 0."""
    ERROR = "error"
    """Another exit code, such as after an exception."""
    TIMEOUT = "timeout"
    """It ran longer than ``Limits.seconds``, or used as much processor time."""
    MEMORY = "memory"
    """It ended with ``MemoryError``."""
    OUTPUT = "output"
    """It printed more than ``Limits.output_bytes``."""
    SIGNAL = "signal"
    """A signal ended it that was not the sandbox's (a crash of the interpreter, or the kernel short of memory)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may use. Memory, processor time and file sizes are limits of each process.

    Attributes:
        seconds: Wall time.
        memory_mb: Address space, in MiB, the interpreter's own 30 MiB included.
        output_bytes: Bytes on standard output, and as many on standard error.
        file_mb: Size of a file, and of all files together where there is a mount namespace; in MiB.
        open_files: Open files.
        processes: Processes and threads, the program itself included.
    """

    seconds: float = 10.0
    memory_mb: int = 512
    output_bytes: int = 1 << 20
    file_mb: int = 16
    open_files: int = 64
    processes: int = 16

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"Limits.{name} is {getattr(self, name)}; it must be positive")


@dataclass(frozen=True, slots=True)
class Protection:
    """Which walls were in force.

    Attributes:
        network: ``"namespace"``: a network of its own without any interface up, and no sockets. ``"filter"``: sockets
            cannot be created. ``"none"``: the program could reach the network.
        processes: ``"namespace"``: every descendant dies with the run. ``"search"``: descendants are looked for and
            killed; one that hides in time is possible in theory.
        files: ``"namespace"``: it sees Python, system libraries and an empty folder. ``"landlock"``: it may open only
            those. ``"none"``: it may read and write what its user may.
        user: ``"other"``: it runs as a user that owns nothing. ``"same"``: as the user of this process, without
            capabilities.
        process_limit: Whether ``Limits.processes`` holds (the kernel does not count those of root).
        syscall_filter: Whether a seccomp filter denies dangerous system calls.
    """

    network: Literal["namespace", "filter", "none"]
    processes: Literal["namespace", "search"]
    files: Literal["namespace", "landlock", "none"]
    user: Literal["other", "same"]
    process_limit: bool
    syscall_filter: bool

    @classmethod
    def parse(cls, line: str) -> Protection:
        """Read the line that the other side writes first."""
        values = dict(part.split("=", 1) for part in line.split())
        return cls(
            network=values["network"],  # type: ignore[arg-type]
            processes=values["processes"],  # type: ignore[arg-type]
            files=values["files"],  # type: ignore[arg-type]
            user=values["user"],  # type: ignore[arg-type]
            process_limit=values["process_limit"] == "1",
            syscall_filter=values["syscall_filter"] == "1",
        )


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a program: a process of its own in an empty folder.

    Attributes:
        code: The program; its ``__name__`` is ``"__main__"``, its file ``main.py`` in the working folder.
        stdin: What it reads from standard input.
    """

    code: str
    stdin: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """Runs that share a sandbox and are done one after the other; nothing of a run is left for the next.

    Attributes:
        runs: The runs, in order.
        files: Files in the working folder of every run, by relative path.
        prelude: **Trusted** code that is run once; its names are known to every run. For imports that all runs share.
        site_packages: Whether the packages of this interpreter can be imported; else the standard library alone.
        stop_after_failures: The job ends after so many runs that did not end with ``Reason.OK``; 0 is never.
        total_seconds: Wall time of all runs; the one that it ends in times out, and none is started after it.
        require_network_isolation: Refuse to run anything where the network cannot be taken away.
    """

    runs: tuple[Run, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    prelude: str = ""
    site_packages: bool = False
    stop_after_failures: int = 0
    total_seconds: float = 600.0
    require_network_isolation: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one run.

    Attributes:
        reason: How it ended.
        exit_code: The exit code; minus the signal's number if a signal ended it.
        seconds: Wall time from its start to its end.
        stdout: Standard output as UTF-8, bytes that are none replaced; at most ``Limits.output_bytes``.
        stderr: Standard error, likewise.
        report: What it wrote to file descriptor 3, for code that runs a program and reports apart from its output.
        protection: Which walls were in force.
    """

    reason: Reason
    exit_code: int
    seconds: float
    stdout: str
    stderr: str
    report: bytes
    protection: Protection

    @property
    def truncated(self) -> bool:
        """Whether the program was killed for its output, so that only the beginning of it is here."""
        return self.reason is Reason.OUTPUT
