"""The keys of a run that answers for its policy."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from roll.config.base import ConfigModel


class ServeConfig(ConfigModel):
    """Where and how a run of `mode: serve` answers."""

    host: str = Field("127.0.0.1", min_length=1, description="The interface. `0.0.0.0` lets other machines ask, too.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(0, description="0: any that is free.")
    key: str | None = Field(None, min_length=1, description="What clients show. null: one is made and printed.")
    name: str | None = Field(None, min_length=1, description="The name of the model. null: `exp_name`.")
