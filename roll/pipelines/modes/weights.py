"""Weights that another run learned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll.distributed.weight_sync import WeightsGoneError
from roll.pipelines.sampled import SampledRun

if TYPE_CHECKING:
    from roll.workers.weights_elsewhere import WeightsElsewhere


async def take_weights(run: SampledRun[Any], version: int, weights: Path | WeightsElsewhere) -> bool:
    """Let a run sample from a checkpoint, or from what another program offers, from now on.

    Returns:
        Whether it was still there.
    """
    devices = run.core.devices
    async with run.core.engines.weights_at_rest:
        await devices.begin_update()
        is_there = True
        try:
            if isinstance(weights, Path):
                await run.core.trainer.load(weights)
            else:
                await weights.take(version)
                await run.core.engines.take_from(weights)
        except (FileNotFoundError, WeightsGoneError):
            is_there = False
        await devices.begin_weight_sync()
        if is_there:
            with run.progress.stage("weight_sync"):
                is_there = await _published(run, version)
        await devices.end_weight_sync()
    return is_there


async def _published(run: SampledRun[Any], version: int) -> bool:
    try:
        await run.publish(version)
    except WeightsGoneError:
        return False
    return True
