"""The real vLLM engine: its processes end with it, and its death is told."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import pytest
from vllm_support import Harness, needs_vllm

from roll.strategies.generation.vllm.errors import GenerationError

pytestmark = needs_vllm


def wait_until_gone(vllm: Harness, seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while vllm.processes() and time.monotonic() < deadline:
        time.sleep(0.1)


@pytest.mark.exhaustive
def test_a_killed_engine_fails_its_requests_can_be_closed_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # The name of a socket has 107 characters at most.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        _kill_and_close(Path(folder))
        assert not list(Path(folder).glob("roll-vllm-*"))
        assert not _sockets(Path(folder))


def _kill_and_close(folder: Path) -> None:
    vllm = Harness()
    try:
        assert _sockets(folder)
        vllm.generate([5], max_new_tokens=1)

        async def scenario() -> None:
            running = asyncio.create_task(vllm.engine.generate(vllm.request([5], max_new_tokens=900)))
            await asyncio.sleep(0.1)
            for process in vllm.processes():
                process.kill()
            with pytest.raises(GenerationError, match="failed while request"):
                await asyncio.wait_for(running, 200)
            with pytest.raises(GenerationError):
                await asyncio.wait_for(vllm.engine.generate(vllm.request([5])), 200)

        vllm.run(scenario())
    finally:
        vllm.close()
    wait_until_gone(vllm)
    assert vllm.processes() == []


def _sockets(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_socket()]
