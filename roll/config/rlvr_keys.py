"""The keys that the RLVR pipeline adds: prompts from files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from roll.config.base import ConfigModel
from roll.config.grading_keys import GradedKeys
from roll.config.worker import DataArgs, GeneratingArgs


class ValidationConfig(ConfigModel):
    """Evaluation of the RLVR pipeline."""

    data_args: DataArgs = Field(default_factory=DataArgs, description="Validation files; metrics are per tag.")
    generating_args: GeneratingArgs | None = Field(
        None,
        description="Sampling of evaluations; unset keys are those of training. `num_return_sequences` responses per "
        "prompt give mean@k and pass@k.",
    )


class RLVRKeys(GradedKeys):
    """The keys of prompts; :class:`roll.config.rlvr.RLVRConfig` adds what they mean together."""

    validation: ValidationConfig | None = Field(None, description="Evaluation. null: none.")

    @model_validator(mode="before")
    @classmethod
    def _fill_response_limit(cls, data: Any) -> Any:
        """Let responses be as long as ``response_length`` says, where ``max_new_tokens`` does not say it."""
        if not isinstance(data, Mapping) or data.get("response_length") is None:
            return data
        engine = _as_mapping(data.get("actor_infer", {}))
        generating = _as_mapping((engine or {}).get("generating_args", {}))
        if engine is None or generating is None or "max_new_tokens" in generating:
            return data
        limited = {**generating, "max_new_tokens": data["response_length"]}
        return {**data, "actor_infer": {**engine, "generating_args": limited}}

    @property
    def samples_per_step(self) -> int:
        """Responses of a training step: ``rollout_batch_size`` prompts with so many responses each."""
        return self.rollout_batch_size * self.num_return_sequences_in_group

    @property
    def val_generating(self) -> GeneratingArgs:
        """Sampling of evaluations: ``validation.generating_args`` before ``val_generating_args`` before training's."""
        changes = self.validation.generating_args if self.validation is not None else None
        base = super().val_generating
        return base if changes is None else base.model_copy(update=changes.model_dump(exclude_unset=True))

    @property
    def val_data_args(self) -> DataArgs:
        """The validation data; how rows are read is as in training where ``validation.data_args`` does not say."""
        own = self.validation.data_args if self.validation is not None else DataArgs()
        given = own.model_fields_set
        keys = {"ground_truth", "tag", "system_prompt", "template", "enable_thinking"} - given
        if not given & {"prompt", "messages"}:
            keys |= {"prompt", "messages"}
        return own.model_copy(update={key: getattr(self.actor_train.data_args, key) for key in keys})


def _as_mapping(section: Any) -> Mapping[str, Any] | None:
    """Return the keys that were set in a section; ``None`` for what is none, which validation reports."""
    if isinstance(section, ConfigModel):
        return section.model_dump(exclude_unset=True)
    return section if isinstance(section, Mapping) else None
