"""Servers of the Model Context Protocol: one made with the official package, and the one of its npm peers."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from roll.config.tool_use import ToolUse
from roll.tools import Toolbox, ToolConfigError, UnavailableError, make_tools
from tests.ports import free_port
from tests.rings import exhaustive_but

pytest.importorskip("mcp")
pytestmark = pytest.mark.processes
SERVER = str(Path(__file__).with_name("mcp_server.py"))
COMMAND = [sys.executable, SERVER]
NPM = Path(__file__).resolve().parents[2] / ".venv" / "npm" / "node_modules" / ".bin"
"""The suite and the server of the protocol's authors, and a Node that is new enough for them."""


def box(**options: Any) -> Toolbox:
    return Toolbox(make_tools([{"mcp": options}]), ToolUse(timeout=30))


def told(toolbox: Toolbox, name: str, arguments: str) -> tuple[str, int]:
    call = f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'
    answers = toolbox.answer(toolbox.find(call))
    return answers.results[0], answers.wrong


def children() -> list[psutil.Process]:
    return psutil.Process().children()


def check(toolbox: Toolbox) -> None:
    names = {schema["function"]["name"]: schema["function"] for schema in toolbox.schemas}
    assert set(names) == {"add", "remember", "fail"} and names["add"]["description"] == "Add two numbers."
    assert names["add"]["parameters"]["required"] == ["a", "b"]
    assert told(toolbox, "add", '{"a": 2, "b": 40}') == ("42", 0)
    text, wrong = told(toolbox, "add", '{"a": "two"}')
    assert wrong == 1 and text.startswith("error: ")
    text, wrong = told(toolbox, "fail", "{}")
    assert wrong == 0 and text.startswith("error: fail failed")


def test_a_server_over_stdio() -> None:
    shared = box(command=COMMAND)
    check(shared)
    told(shared, "remember", '{"number": 1}')
    assert told(box(command=COMMAND), "remember", '{"number": 2}')[0] == "[1, 2]"  # all share one
    own = box(command=COMMAND, own=True, only=["remember"])
    assert told(own, "remember", '{"number": 3}')[0] == "[3]"
    own.close()


def test_a_server_over_http() -> None:
    port = free_port()
    process = subprocess.Popen([*COMMAND, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with socket.socket() as trying:
                if trying.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        check(box(url=f"http://127.0.0.1:{port}/mcp"))
    finally:
        process.kill()
        process.wait()


@pytest.mark.exhaustive
def test_a_server_that_died_is_unavailable_and_the_next_episode_has_another() -> None:
    """`own` and shared connections alike."""
    for own in (False, True):
        options: dict[str, Any] = {"command": COMMAND, "own": own, "only": ["remember"]}
        before = set(children())
        mine = box(**options, seconds=20.0 + own)
        assert told(mine, "remember", '{"number": 1}')[0] == "[1]"
        (server,) = set(children()) - before
        server.kill()
        with pytest.raises(UnavailableError, match="Connection closed"):
            told(mine, "remember", '{"number": 2}')
        again = box(**options, seconds=20.0 + own)
        assert told(again, "remember", '{"number": 3}')[0] == "[3]"
        again.close()


def test_a_server_that_is_not_there_is_told_before_the_run() -> None:
    with pytest.raises(ToolConfigError, match="no MCP server: no-such-program"):
        box(command=["no-such-program"])
    with pytest.raises(ToolConfigError, match="either command"):
        box()
    with pytest.raises(ToolConfigError, match="no tool 'ad'. Did you mean 'add'"):
        box(command=COMMAND, only=["ad"])


@pytest.mark.skipif(not NPM.exists(), reason="npm's packages are not installed: make mcp-peers")
def test_the_server_of_the_protocols_authors() -> None:
    everything = box(command=[str(NPM / "node"), str(NPM / "mcp-server-everything"), "stdio"])
    assert told(everything, "echo", '{"message": "hello"}') == ("Echo: hello", 0)
    assert told(everything, "echo", "{}")[1] == 1


@pytest.mark.skipif(not NPM.exists(), reason="npm's packages are not installed: make mcp-peers")
@pytest.mark.parametrize("scenario", exhaustive_but(["initialize", "tools_call", "sse-retry"], "tools_call"))
def test_the_client_conforms_to_the_protocol(scenario: str) -> None:
    """By the suite of the protocol's authors; its other scenarios are about logins and forms, not tools."""
    client = f"{sys.executable} {Path(__file__).with_name('mcp_client.py')}"
    words = [str(NPM / "node"), str(NPM / "conformance"), "client", "--command", client, "--scenario", scenario]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "OVERALL: PASSED" in said and "0 failed, 0 warnings" in said, said[-3000:]
