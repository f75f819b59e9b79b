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

pytestmark = [pytest.mark.processes, pytest.mark.exhaustive]

COMPLY = Path(sys.executable).with_name("llm-comply")
INSTALLED = Path(__file__).parents[2] / ".venv" / "npm" / "node_modules" / ".bin" / "compatcanary"  # make gateway-peers
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
def test_compatcanary_misses_schemas_of_answers_and_nothing_else(served: Served) -> None:
    words = [str(CANARY), "scan", "--base-url", f"{served.url}/v1", "--model", "toy", "--format", "json"]
    # Where the machine has no node of its own, npm's is beside it.
    path = f"{os.environ['PATH']}{os.pathsep}{INSTALLED.parent}"
    environment = {**os.environ, "OPENAI_API_KEY": served.episode(), "PATH": path}
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, env=environment)
    probes = json.loads(done.stdout)["results"]
    assert [each["name"] for each in probes if each["status"] == "fail"] == ["Strict structured output"], done.stdout
    assert sum(each["status"] == "pass" for each in probes) == 6
