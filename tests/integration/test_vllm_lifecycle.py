"""The real vLLM engine: its processes end with it, and its death is told."""

from __future__ import annotations

import asyncio
import time

import pytest
from vllm_support import Harness, needs_vllm

from roll.strategies.generation.vllm.errors import GenerationError

pytestmark = needs_vllm


def wait_until_gone(vllm: Harness, seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while vllm.processes() and time.monotonic() < deadline:
        time.sleep(0.1)


@pytest.mark.exhaustive
def test_a_killed_engine_fails_its_requests_and_can_be_closed() -> None:
    vllm = Harness()
    try:
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
