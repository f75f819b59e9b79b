"""Docker and Podman, as they describe themselves: which is used, as which user, and what is said where none works."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roll.sandbox import ContainerLimits, SandboxUnavailableError, find_container_program

pytestmark = pytest.mark.processes

OURS = f"{os.getuid()}:{os.getgid()}"
DOCKER = {"ServerVersion": "28.2.2", "SecurityOptions": ["name=seccomp,profile=builtin", "name=cgroupns"]}
PODMAN = {"host": {"security": {"rootless": False}}, "version": {"Version": "4.3.1"}}
ROOTLESS = {"host": {"security": {"rootless": True}}, "version": {"Version": "5.0.0"}}

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put programs of a test's own where all others are out of reach."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def put(name: str, lines: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / name).chmod(0o755)

    return put


def says(answer: dict[str, Any]) -> str:
    return f"[ \"$1\" = info ] && echo '{json.dumps(answer)}'"


BROKEN = "echo 'Cannot connect to the daemon' >&2; exit 1"


@pytest.mark.parametrize(
    ("name", "answer", "version", "user"),
    [
        ("docker", DOCKER, "Docker 28.2.2", OURS),
        ("docker", {**DOCKER, "SecurityOptions": ["name=rootless"]}, "Docker 28.2.2", "0:0"),
        ("docker", {**DOCKER, "SecurityOptions": None}, "Docker 28.2.2", OURS),
        ("docker", PODMAN, "Podman 4.3.1", OURS),  # its own `docker`
        ("podman", PODMAN, "Podman 4.3.1", OURS),
        ("podman", ROOTLESS, "Podman 5.0.0", "0:0"),
    ],
)
def test_files_that_are_left_belong_to_us(
    install: Install, name: str, answer: dict[str, Any], version: str, user: str
) -> None:
    install(name, says(answer))
    found = find_container_program()
    assert (Path(found.path).name, found.version, found.user) == (name, version, user)


def test_the_first_that_works_is_used_unless_one_is_named(install: Install) -> None:
    install("docker", says(DOCKER))
    install("podman", says(PODMAN))
    assert Path(find_container_program().path).name == "docker"
    assert Path(find_container_program("podman").path).name == "podman"


def test_one_whose_daemon_is_away_is_passed_over_or_complains(install: Install) -> None:
    install("docker", BROKEN)
    with pytest.raises(SandboxUnavailableError, match="Cannot connect to the daemon .*docker info` must work"):
        find_container_program()
    install("podman", says(PODMAN))
    assert Path(find_container_program().path).name == "podman"
    with pytest.raises(SandboxUnavailableError, match="Cannot connect"):
        find_container_program("docker")


def test_where_there_is_none_it_says_what_else_there_is(install: Install) -> None:
    with pytest.raises(SandboxUnavailableError, match="no docker and no podman on PATH: install one, or use sandbox"):
        find_container_program()
    with pytest.raises(SandboxUnavailableError, match="no podman on PATH"):
        find_container_program("podman")


def test_an_image_is_asked_for_by_its_name(install: Install) -> None:
    install("docker", f'if [ "$1" = image ]; then [ "$5" = there:1 ]; exit $?; fi\n{says(DOCKER)}')
    program = find_container_program("docker")
    program.require_image("there:1")
    with pytest.raises(SandboxUnavailableError, match="docker pull absent:1`, or build it"):
        program.require_image("absent:1")


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8g"])
def test_limits_are_positive_whole_numbers_or_none(value: Any) -> None:
    with pytest.raises(ValueError, match="memory_mb is .*positive whole number, or null"):
        ContainerLimits(memory_mb=value)
    assert ContainerLimits(memory_mb=None).memory_mb is None
