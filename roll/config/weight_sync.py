"""The keys of weight sync: how new weights travel from the trainer to engines in other processes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from roll.config.base import ConfigModel


class WeightSyncConfig(ConfigModel):
    """How new weights travel from the trainer to the engines."""

    method: Literal["auto", "in_process", "broadcast", "cuda_ipc", "checkpoint"] = Field(
        "auto", description="`auto`: handed over in one process, shared memory on one GPU, else broadcast."
    )
    bucket_mib: Annotated[int, Field(ge=1)] = Field(256, description="Most MiB that are sent in one piece.")
    timeout: Annotated[float, Field(gt=0)] = Field(
        600, description="Seconds that a single wait may take: for an engine to join, for a piece to arrive."
    )
    host: str | None = Field(None, description="Address under which engines reach the trainer. null: found out.")
    verify: bool = Field(
        True,
        description="After every update, ask each engine a few fixed prompts and compare its log-probs with the "
        "trainer's; stop where they differ.",
    )
    tolerance: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="Largest difference of a log-prob that `verify` lets pass. null: 0.001 where both compute in fp32, "
        "0.5 with bf16 or fp16, any where the engine is quantised.",
    )
    compare_tensors: bool = Field(
        False,
        description="With `verify`: compare every tensor too, at every update. Finds changes that are lost in the "
        "rounding of an answer, and reads all weights once more on both sides.",
    )
    directory: Annotated[Path, Field(strict=False)] | None = Field(
        None, description="Folder that trainer and engines both see, for `method: checkpoint`."
    )
