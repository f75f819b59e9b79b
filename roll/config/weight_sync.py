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
    directory: Annotated[Path, Field(strict=False)] | None = Field(
        None, description="Folder that trainer and engines both see, for `method: checkpoint`."
    )
