"""Testers of APIs that others wrote, against the gateway; what they find missing is what docs/gateway.md says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conforming import obliging
from serving import Served, serving

from roll.gateway import recorded_metrics

pytestmark = [pytest.mark.processes, pytest.mark.exhaustive]

COMPLY = Path(sys.executable).with_name("llm-comply")
INSTALLED = Path(__file__).parents[2] / ".venv" / "npm" / "node_modules" / ".bin" / "compatcanary"  # make gateway-peers
CODEX = INSTALLED.with_name("codex")
CANARY = str(INSTALLED) if INSTALLED.is_file() else shutil.which("compatcanary")
ANTHROPIC = ("--auth-header", "x-api-key", "--no-bearer")


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as served:
        served.engine._next_ids = obliging(served.renderer)
        yield served


@pytest.mark.skipif(not COMPLY.is_file(), reason="pip install llm-comply")
@pytest.mark.parametrize(
    ("api", "passed", "more"), [("openai-chat", 7, ()), ("open-responses", 11, ()), ("anthropic", 7, ANTHROPIC)]
)
def test_llm_comply_misses_pictures_and_nothing_else(
    served: Served, api: str, passed: int, more: tuple[str, ...]
) -> None:
    words = [
        sys.executable,
        str(COMPLY),
        "run",
        "-u",
        f"{served.url}/v1",
        "-k",
        served.episode(),
        "-m",
        "toy",
        "--format",
        api,
        "--json",
    ]
    done = subprocess.run([*words, *more], capture_output=True, text=True, timeout=100)
    results = json.loads(done.stdout)["results"]
    by_status = {
        status: [each["name"] for each in results if each["status"] == status] for status in ("failed", "passed")
    }
    assert by_status["failed"] == ["Image Input"], [each for each in results if each["status"] == "failed"]
    assert len(by_status["passed"]) == passed


@pytest.mark.skipif(CANARY is None, reason="make gateway-peers")
def test_compatcanary_misses_nothing(served: Served) -> None:
    words = [str(CANARY), "scan", "--base-url", f"{served.url}/v1", "--model", "toy", "--format", "json"]
    # Where the machine has no node of its own, npm's is beside it.
    path = f"{os.environ['PATH']}{os.pathsep}{INSTALLED.parent}"
    environment = {**os.environ, "OPENAI_API_KEY": served.episode(), "PATH": path}
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, env=environment)
    probes = json.loads(done.stdout)["results"]
    assert [each["name"] for each in probes if each["status"] == "fail"] == [], done.stdout
    assert sum(each["status"] == "pass" for each in probes) == 7


@pytest.mark.skipif(not CODEX.is_file(), reason="make gateway-peers")
def test_codex_does_a_task_with_its_tools_and_its_conversation_is_one_sample(tmp_path: Path) -> None:
    call = json.dumps({"name": "exec_command", "arguments": {"cmd": "echo 42 > answer.txt"}})
    with serving(f"<tool_call>\n{call}\n</tool_call>", "It is written.", sequence_length=400_000) as served:
        key = served.episode()
        provider = f'{{name="roll",base_url="{served.url}/v1",env_key="OPENAI_API_KEY",wire_api="responses"}}'
        words = [str(CODEX), "exec", "--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check", "-m", "toy"]
        words += ["-c", "model_provider=roll", "-c", f"model_providers.roll={provider}", "Write 42 to answer.txt"]
        path = f"{os.environ['PATH']}{os.pathsep}{CODEX.parent}"
        environment = {**os.environ, "OPENAI_API_KEY": key, "CODEX_HOME": str(tmp_path), "PATH": path}
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=200, env=environment, cwd=tmp_path, stdin=subprocess.DEVNULL
        )
        assert done.stdout.strip() == "It is written.", done.stderr
        assert (tmp_path / "answer.txt").read_text() == "42\n"
        assert recorded_metrics(served.recorders[key]) == {
            "calls": 2,
            "branches": 1,
            "calls_refused": 0,
            "tokens_kept": 1,
        }
