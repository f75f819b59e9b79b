"""Podman with a storage of a test's own, and an image in it that is made of what this machine has."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

IMAGE = "localhost/roll-test:1"
PYTHON = str(Path(sys.executable).resolve())
"""The interpreter under the environment of the tests; an image sees it where ``SEEN`` is mounted."""
SEEN = sorted({"/usr", *(str(Path(prefix).resolve()) for prefix in (sys.base_prefix, sys.base_exec_prefix))})
"""Interpreter, system libraries and programs of this machine."""

_CONTAINERS = """
[containers]
# Where this process may not raise its own limits, defaults beyond them would fail.
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
{runtime}
"""
_STORAGE = """
[storage]
driver = "vfs"
graphroot = "{folder}/images"
runroot = "{folder}/run"
[storage.options.vfs]
ignore_chown_errors = "true"
"""


@contextmanager
def podman() -> Iterator[None]:
    """Let Podman work in a folder that is deleted afterwards, with ``IMAGE`` in it; skip the tests where it cannot."""
    if shutil.which("podman") is None or not Path("/bin/busybox").exists():
        pytest.skip("podman or /bin/busybox is not here: apt-get install podman runc busybox-static")
    # Not in a folder of pytest: the names of sockets in there would be too long.
    folder = Path(tempfile.mkdtemp(prefix="roll-podman-"))
    with pytest.MonkeyPatch.context() as patch:
        try:
            for name, value in write_settings(folder).items():
                patch.setenv(name, value)
            import_image(folder / "root")
            tried = _podman("run", "--rm", "--network=none", "--pids-limit=100", "--memory=512m", IMAGE, "true")
            if tried.returncode:
                pytest.skip(f"podman does not work on this machine: {tried.stderr.strip()[-300:]}")
            yield
            assert containers() == [], "a container was left"
        finally:
            _podman("rm", "--all", "--force")
            shutil.rmtree(folder, ignore_errors=True)


def containers() -> list[str]:
    """Return the names of all containers, whether they run or not."""
    return _podman("ps", "--all", "--format", "{{.Names}}").stdout.split()


@contextmanager
def docker() -> Iterator[None]:
    """Let Docker's own program run containers as well, by way of Podman's server of Docker's interface."""
    if shutil.which("docker") is None:
        pytest.skip("Docker's program is not here")
    with podman(), tempfile.TemporaryDirectory(prefix="roll-docker-") as folder, pytest.MonkeyPatch.context() as patch:
        address = Path(folder, "docker.sock")
        server = subprocess.Popen(
            [_path(), "system", "service", "--time=0", f"unix://{address}"], stderr=subprocess.DEVNULL
        )
        try:
            end = time.monotonic() + 30
            while not address.exists():
                assert server.poll() is None and time.monotonic() < end, "podman system service does not start"
                time.sleep(0.05)
            patch.setenv("DOCKER_HOST", f"unix://{address}")
            yield
        finally:
            server.kill()
            server.wait()


def write_settings(folder: Path) -> dict[str, str]:
    """Write what Podman needs to work in a folder, and return the variables that say so."""
    runtime = 'runtime = "runc"' if shutil.which("runc", path="/usr/sbin:/usr/bin:/sbin:/bin") else ""
    (folder / "containers.conf").write_text(_CONTAINERS.format(runtime=runtime))
    (folder / "storage.conf").write_text(_STORAGE.format(folder=folder))
    settings = {"CONTAINERS_CONF": "containers.conf", "CONTAINERS_STORAGE_CONF": "storage.conf"}
    return {name: str(folder / file) for name, file in settings.items()}


def import_image(root: Path, prefix: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
    """Make ``IMAGE`` of a shell and links to what is mounted; skip the test where Podman cannot.

    Args:
        root: A folder for what the image has.
        prefix: Words before each command.
        environment: All of the environment of Podman, if not that of this process.
    """
    for name in ("bin", "proc", "sys", "dev", "etc", "tmp"):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    shutil.copy("/bin/busybox", root / "bin" / "busybox")
    for name in ("sh", "true", "sleep", "wget", "id"):
        (root / "bin" / name).symlink_to("busybox")
    for name in ("lib", "lib64"):
        if Path("/", name).is_symlink():
            (root / name).symlink_to(os.readlink(f"/{name}"))
    packed = subprocess.run(["tar", "-C", root, "-c", "."], check=True, capture_output=True).stdout
    words = [*prefix, _path(), "import", "-", IMAGE]
    imported = subprocess.run(words, input=packed, capture_output=True, env=environment, cwd="/")
    if imported.returncode:
        pytest.skip(f"podman cannot import an image: {imported.stderr.decode().strip()[-300:]}")


@functools.cache
def _path() -> str:
    path = shutil.which("podman")
    assert path is not None
    return path


def _podman(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([_path(), *words], capture_output=True, text=True)
