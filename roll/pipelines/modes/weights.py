"""Weights that another run learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roll.pipelines.sampled import SampledRun


async def take_weights(run: SampledRun[Any], version: int, folder: Path) -> bool:
    """Let a run sample from a checkpoint from now on; returns whether it is still there."""
    devices = run.core.devices
    async with run.core.engines.weights_at_rest:
        await devices.begin_update()
        is_there = True
        try:
            await run.core.trainer.load(folder)
        except FileNotFoundError:
            is_there = False  # there is a newer one by now, for the next step
        await devices.begin_weight_sync()
        if is_there:
            with run.progress.stage("weight_sync"):
                await run.publish(version)
        await devices.end_weight_sync()
    return is_there
