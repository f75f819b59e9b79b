"""The keys that say when a run that explores takes the weights of the run that learns."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from roll.config.base import ConfigModel
from roll.config.worker import NonNegative, Positive


class SyncConfig(ConfigModel):
    """When a run that explores takes the weights of the run that learns; both have the same."""

    style: Literal["fixed", "dynamic_by_trainer", "dynamic_by_explorer"] = Field(
        "fixed",
        description="`fixed`: both every `interval` steps, each waits for the other; `dynamic_by_trainer`: the trainer "
        "every `interval` of its steps, the explorer takes what is newest; `dynamic_by_explorer`: the explorer every "
        "`interval` of its steps, wherever the trainer is.",
    )
    interval: Positive = Field(1, description="Steps between two synchronisations.")
    offset: NonNegative = Field(0, description="`fixed`: steps that the explorer is ahead.")
    timeout: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Seconds that the explorer waits for weights; then the run fails. null: any time."
    )

    @property
    def kept(self) -> int:
        """Checkpoints that must be there for an explorer that is as far behind as it may be."""
        return (self.offset + self.interval - 1) // self.interval + 2
