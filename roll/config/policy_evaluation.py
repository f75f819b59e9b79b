"""The key by which a run that samples nothing has its policy measured by playing and answering."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field, field_validator

from roll.config.trainer_keys import TrainerKeys

CONFIG: Final = "config"
"""What names a configuration in the section."""


class PolicyEvaluationKeys(TrainerKeys):
    """The keys of training, and what the policy is measured on meanwhile."""

    evaluation: dict[str, Any] | None = Field(
        None,
        description="What the policy plays or answers every `eval_steps`: the name of a configuration (`sokoban`, "
        "`rlvr_math`), on what runs of that are measured on; `{config: sokoban, val_batch_size: 64}`; or keys of one "
        "alone. Policy, seed and chat template are those of this run. null: nothing.",
    )

    @field_validator("evaluation", mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {CONFIG: value} if isinstance(value, str) else value
