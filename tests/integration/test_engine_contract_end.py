"""What every generation engine does, real or double, when it is closed. Run last: other tests share the engines."""

from __future__ import annotations

import asyncio

import psutil
import pytest
from engines import LONG, EngineUnderTest, random_prompt

from roll.generation import Completion


def test_close_ends_requests_and_leaves_no_process_behind(engine: EngineUnderTest) -> None:
    async def scenario() -> Completion:
        _, task = await engine.started(random_prompt(9, 1))
        await engine.engine.close()
        await engine.engine.close()
        with pytest.raises(RuntimeError, match="closed"):
            await engine.engine.generate(engine.request([5]))
        return await asyncio.wait_for(task, 100)

    got = engine.run(scenario())
    engine.loop.close()
    assert got.finish_reason == "abort"
    assert 0 < len(got.token_ids) == len(got.logprobs) < LONG
    _, alive = psutil.wait_procs(engine.own_processes(), timeout=150)
    assert alive == []
