"""What programs cannot reach, on this machine and in poorer worlds; each world must keep what it claims."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from roll.sandbox import Job, Run, SandboxUnavailableError, capabilities
from roll.sandbox.run import _parse

pytestmark = pytest.mark.processes

WORLDS = ["machine", "ordinary_user", "strict_container", "bare_root", "no_mounts", "no_maps"]


@dataclass
class World:
    name: str
    protection: dict[str, Any]
    outcomes: dict[str, dict[str, Any]]
    connections: int
    outside: str
    victim: list[list[Any]]


@pytest.fixture(scope="module", params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    outside = tmp_path_factory.mktemp("outside") / "secret.txt"
    outside.write_text("the secret")
    outside.parent.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        script = Path(__file__).with_name("world.py")
        done = subprocess.run(
            [sys.executable, str(script), request.param, str(server.getsockname()[1]), str(outside)],
            capture_output=True,
            text=True,
            env=os.environ | {"SECRET_TOKEN": "hunter2", "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        if "this machine cannot make the world" in done.stderr:
            pytest.skip(done.stderr.strip())
        assert done.returncode == 0, done.stderr
        connections = 0
        try:
            while server.accept():
                connections += 1
        except TimeoutError:
            pass
    answer = json.loads(done.stdout)
    yield World(
        request.param, answer["protection"], answer["outcomes"], connections, outside.read_text(), answer["victim"]
    )


def test_network_cannot_be_reached(world: World) -> None:
    if world.protection["network"] == "none":
        pytest.skip("not claimed here")
    assert world.outcomes["connect"]["reason"] == "error"
    assert world.connections == 0


def test_no_kind_of_socket_can_be_made_where_the_filter_is_claimed(world: World) -> None:
    if not world.protection["syscall_filter"]:
        pytest.skip("not claimed here")
    assert world.outcomes["raw_socket_call"]["stdout"] == "-1 -1 -1\n"


def test_files_outside_can_neither_be_read_nor_written(world: World) -> None:
    if world.protection["files"] == "none":
        pytest.skip("not claimed here")
    assert world.outcomes["read"]["reason"] == "error"
    assert "the secret" not in world.outcomes["read"]["stdout"]
    assert world.outcomes["write"]["reason"] == "error"
    assert world.outside == "the secret"


def test_own_folder_can_be_written(world: World) -> None:
    assert world.outcomes["own_folder"]["stdout"] == "['main.py', 'x']\n"


def test_environment_of_this_process_stays_here(world: World) -> None:
    names = world.outcomes["environment"]["stdout"]
    assert "'HOME'" in names
    assert "SECRET_TOKEN" not in names


def test_processes_are_limited_where_claimed(world: World) -> None:
    limited = "BlockingIOError" in world.outcomes["processes"]["stderr"]
    assert limited == world.protection["process_limit"]


def test_the_supervisor_cannot_be_killed(world: World) -> None:
    # The run before and the ones after these were answered too, or the world would have ended with an error.
    assert world.outcomes["kill_parent"]["reason"] in ("ok", "error")
    assert world.outcomes["kill_all"]["reason"] in ("ok", "error", "signal")


def test_another_process_of_the_user_is_neither_signalled_nor_slowed(world: World) -> None:
    if world.protection["processes"] == "search" and not world.protection["syscall_filter"]:
        pytest.skip("not claimed here")
    before, after = world.victim
    assert before == after
    # Their own priority and processors they may set.
    assert world.outcomes["others"]["stdout"].endswith("done\n"), world.outcomes["others"]


def test_programs_have_no_rights(world: World) -> None:
    # "Invalid" is the answer about a user that the namespace does not know.
    assert any(text in world.outcomes["chown"]["stderr"] for text in ("not permitted", "Invalid argument"))
    assert world.outcomes["new_privileges"]["stdout"] == "1\n"
    if world.protection["syscall_filter"]:
        assert world.outcomes["namespaces"]["stdout"] == "-1\n"


def test_programs_inherit_four_descriptors(world: World) -> None:
    assert world.outcomes["descriptors"]["stdout"] == "[0, 1, 2, 3]\n"


def test_walls_of_poorer_worlds_are_the_weaker_ones(world: World) -> None:
    if world.name in ("strict_container", "bare_root", "no_maps"):
        assert (world.protection["network"], world.protection["processes"]) == ("filter", "search")
    if world.name not in ("machine", "ordinary_user"):
        assert world.protection["files"] != "namespace"
    if world.name in ("no_mounts", "no_maps"):
        assert world.protection["files"] == "landlock"


def test_capabilities_are_those_of_every_run(world: World) -> None:
    assert {json.dumps(outcome["protection"]) for outcome in world.outcomes.values()} == {json.dumps(world.protection)}


@pytest.mark.parametrize(("signals", "answer"), [(True, "sent\n"), (False, "denied\n")])
def test_signals_are_denied_where_nothing_else_confines_them(signals: bool, answer: str) -> None:
    script = (
        "import os, resource\nfrom roll.sandbox.inside import kernel, syscalls\nkernel.no_new_privileges()\n"
        f"syscalls.deny_dangerous_calls({signals})\n"
        "try:\n    os.kill(os.getpid(), 0)\n    print('sent')\nexcept PermissionError:\n    print('denied')\n"
        "resource.prlimit(0, resource.RLIMIT_CORE)\n"
        "try:\n    resource.prlimit(os.getppid(), resource.RLIMIT_CORE)\n    print('limits of others')\n"
        "except PermissionError:\n    pass\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert (done.stdout, done.stderr) == (answer, "")


def test_runs_are_refused_where_the_network_cannot_be_taken_away() -> None:
    line = b"network=none processes=search files=none user=same process_limit=0 syscall_filter=0\n"
    with pytest.raises(SandboxUnavailableError, match="require_network_isolation"):
        _parse(line, Job((Run("pass"),)))
    assert _parse(line, Job((Run("pass"),), require_network_isolation=False)) == []


@pytest.mark.exhaustive
def test_self_test_passes_on_a_machine_with_namespaces() -> None:
    if capabilities().files == "none" or not capabilities().process_limit:
        pytest.skip("the self-test reports walls that this machine lacks")
    done = subprocess.run([sys.executable, "-m", "roll.sandbox"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAIL" not in done.stdout
    assert f"network         {capabilities().network}" in done.stdout
