"""Servers of the Model Context Protocol: one made with the official package, and the one of its npm peers."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from roll.tools import Toolbox, ToolConfigError, ToolUse, make_tools

pytest.importorskip("mcp")
pytestmark = pytest.mark.processes
SERVER = str(Path(__file__).with_name("mcp_server.py"))
COMMAND = [sys.executable, SERVER]


def box(**options: Any) -> Toolbox:
    return Toolbox(make_tools([{"mcp": options}]), ToolUse(timeout=30))


def told(toolbox: Toolbox, name: str, arguments: str) -> tuple[str, int]:
    call = f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'
    answers = toolbox.answer(toolbox.find(call))
    return answers.results[0], answers.wrong


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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
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


def test_a_server_that_is_not_there_is_told_before_the_run() -> None:
    with pytest.raises(ToolConfigError, match="no MCP server: no-such-program"):
        box(command=["no-such-program"])
    with pytest.raises(ToolConfigError, match="either command"):
        box()
    with pytest.raises(ToolConfigError, match="no tool 'ad'. Did you mean 'add'"):
        box(command=COMMAND, only=["ad"])


@pytest.mark.skipif(shutil.which("mcp-server-everything") is None, reason="npm's server-everything is not installed")
def test_the_server_of_the_protocols_authors() -> None:
    everything = box(command=["mcp-server-everything", "stdio"])
    assert told(everything, "echo", '{"message": "hello"}') == ("Echo: hello", 0)
    assert told(everything, "echo", "{}")[1] == 1
