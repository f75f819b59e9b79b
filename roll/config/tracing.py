"""The keys of traces: what happened to each episode when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from roll.config.base import ConfigModel


class TracingConfig(ConfigModel):
    """Where the traces of episodes go."""

    endpoint: str | None = Field(
        None,
        pattern="^https?://",
        description="Where a collector of OpenTelemetry takes traces over HTTP (`http://localhost:4318/v1/traces`). "
        "null: the file `trace.json` among the logs, which https://ui.perfetto.dev opens.",
    )
    headers: dict[str, str] = Field(
        default_factory=dict, description="What each request to the collector says besides."
    )
    share: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="Share of the episodes that are traced.")

    @model_validator(mode="before")
    @classmethod
    def _an_address_alone_is_the_endpoint(cls, data: Any) -> Any:
        """Read ``true`` and ``file`` as a file, and an address as that of a collector."""
        if data is True or data == "file":
            return {}
        return data if isinstance(data, Mapping) else {"endpoint": data}
