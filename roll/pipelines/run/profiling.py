"""PyTorch's profiler around a step, in the workers that the configuration names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from roll.config.profiling import ProfileConfig
from roll.distributed import WorkerError, WorkerGroup
from roll.distributed.profiling import BEGIN, END

PROFILES: Final = "profile"
"""Folder of the traces in that of a run."""


@asynccontextmanager
async def profiled(
    config: ProfileConfig | None, step: int, groups: Mapping[str, WorkerGroup], output_dir: Path
) -> AsyncIterator[None]:
    """Profile a step that is to be, into ``profile/step=000003/actor_train-0.json``.

    Roles that share a process have one trace, that of the first of them: it shows what all of them did.

    Args:
        config: What is profiled, if anything.
        step: The step that is taken meanwhile.
        groups: The workers, by role.
        output_dir: The folder of the run.
    """
    if config is None or step not in config.steps:
        yield
        return
    folder = (output_dir / PROFILES / f"step={step:06d}").absolute()
    workers = [
        (groups[role], rank, folder / f"{role}-{rank}.json")
        for role in config.roles
        if role in groups
        for rank in range(groups[role].size)
        if config.ranks is None or rank in config.ranks
    ]
    for group, rank, path in workers:
        await group.one(rank, BEGIN, path, config.memory)
    try:
        yield
    finally:
        for group, rank, path in workers:
            with suppress(WorkerError):  # it died in the step, which says so itself
                await group.one(rank, END, path, config.memory)
