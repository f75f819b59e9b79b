"""The keys of operators: what is done to tasks before they are played, and to experience before it is learned from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from roll.config.base import ConfigModel


class OperatorConfig(ConfigModel):
    """One operator of a pipeline."""

    name: str = Field(min_length=1, description="Its name (`@register_operator`).")
    args: dict[str, Any] = Field(default_factory=dict, description="Its options, by name.")

    @model_validator(mode="before")
    @classmethod
    def _a_name_alone_has_no_options(cls, data: Any) -> Any:
        return data if isinstance(data, Mapping) else {"name": data}


class OperatorsConfig(ConfigModel):
    """Two pipelines of operators, each applied in its order."""

    tasks: list[OperatorConfig] = Field(
        default_factory=list,
        description="On the rows of `actor_train.data_args`, once, before the first step: `filter`, `length`, "
        "`deduplicate`, `rewrite`, `difficulty`, `curriculum`, `datasets`, `data_juicer`, or one of your own.",
    )
    experience: list[OperatorConfig] = Field(
        default_factory=list,
        description="On the groups of each step that were sampled, before they are learned from or kept: `score`, "
        "`spread`, `success`, `tokens`, `deduplicate_groups`, `reward_shaping`, `data_juicer_groups`, `human_review`, "
        "or one of your own.",
    )
