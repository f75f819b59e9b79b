"""Docker and Podman: which of them is here, whether it works, and what it knows."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from roll.sandbox.records import SandboxError, SandboxUnavailableError

CONTAINER_PROGRAMS: Final = ("docker", "podman")
"""Programs that run containers; the first that works is used where none is named."""
_SECONDS: Final = 60.0
"""How long one may take for an answer."""
_SHOWN: Final = 500
"""Characters of a complaint that are kept."""


@dataclass(frozen=True, slots=True)
class ContainerProgram:
    """A program that runs containers.

    Attributes:
        path: Where it is.
        version: Of what runs the containers.
        user: In a container, the one that the user of this process is, to whom files belong that are left outside.
    """

    path: str
    version: str
    user: str

    def require_image(self, image: str) -> None:
        """Say so where an image is missing.

        Raises:
            SandboxUnavailableError: It is; how to get it.
            SandboxError: The program does not answer.
        """
        _find_image(self.path, image)

    def ask(self, *words: str, environment: Mapping[str, str] | None = None) -> str:
        """Return what it prints for a command.

        Args:
            words: The command.
            environment: Variables that it sees beside those of this process.

        Raises:
            SandboxError: It failed, or took too long.
        """
        return _ask(self.path, words, environment)


def find_container_program(name: str | None = None) -> ContainerProgram:
    """Return a program that works.

    Args:
        name: ``docker`` or ``podman``; without it, the first of them that works.

    Raises:
        SandboxUnavailableError: There is none, or it does not work; what to do.
    """
    if name is not None and name not in CONTAINER_PROGRAMS:
        raise SandboxUnavailableError(f"{name!r} is no program for containers: {' or '.join(CONTAINER_PROGRAMS)}")
    tried = CONTAINER_PROGRAMS if name is None else (name,)
    paths = [os.path.abspath(path) for each in tried if (path := shutil.which(each)) is not None]
    if not paths:
        raise SandboxUnavailableError(
            f"there is no {' and no '.join(tried)} on PATH: install one, or use sandbox: true"
        )
    refusals = []
    for path in paths:
        try:
            return _examine(path)
        except SandboxUnavailableError as error:
            refusals.append(str(error))
    raise SandboxUnavailableError("; ".join(refusals))


@functools.cache
def _examine(path: str) -> ContainerProgram:
    try:
        # The name says little: Podman comes with a `docker` of its own.
        found: dict[str, Any] = json.loads(_ask(path, ("info", "--format", "{{json .}}")))
    except (SandboxError, ValueError) as error:
        raise SandboxUnavailableError(f"{error} (`{path} info` must work for the user of the run)") from error
    if "host" in found:
        version = f"Podman {found.get('version', {}).get('Version', '')}"
        rootless = found["host"].get("security", {}).get("rootless", False)
    else:
        version = f"Docker {found.get('ServerVersion', '')}"
        rootless = any("name=rootless" in option for option in found.get("SecurityOptions") or ())
    # Without the rights of root, whoever runs containers is root in them.
    return ContainerProgram(path, version, "0:0" if rootless else f"{os.getuid()}:{os.getgid()}")


@functools.lru_cache(maxsize=64)
def _find_image(path: str, image: str) -> None:
    try:
        _ask(path, ("image", "inspect", "--format", "{{.Id}}", image))
    except SandboxError as error:
        raise SandboxUnavailableError(f"{error} (get the image by `{path} pull {image}`, or build it)") from error


def _ask(path: str, words: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    try:
        answer = subprocess.run(
            [path, *words],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"{path} {words[0]} failed: {error}") from error
    if answer.returncode:
        said = answer.stderr.decode("utf-8", "replace").strip() or f"exit code {answer.returncode}"
        raise SandboxError(f"{path} {words[0]} failed: {said[-_SHOWN:]}")
    return answer.stdout.decode("utf-8", "replace").strip()
