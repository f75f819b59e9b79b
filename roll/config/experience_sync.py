"""The keys that say when a run that explores takes the weights of the run that learns."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from roll.config.base import ConfigModel
from roll.config.worker import NonNegative, Positive


class SyncConfig(ConfigModel):
    """When a run that explores takes the weights of the run that learns; both have the same."""

    method: Literal["checkpoint", "memory", "gloo", "nccl"] = Field(
        "checkpoint",
        description="How weights travel: `checkpoint`, through the folder of the run that learns; `memory`, through "
        "Ray's object store; `gloo`, `nccl`, straight from the trainer to the engines. All but the first are for "
        "programs that share a store of `type: ray`, and need no `follow`.",
    )
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
        """Versions that must be there for an explorer that is as far behind as it may be."""
        return (self.offset + self.interval - 1) // self.interval + 2

    def is_due(self, step: int) -> bool:
        """Whether the trainer gives its weights to explorers after a step, asked or not."""
        return self.style != "dynamic_by_explorer" and step % self.interval == 0
