"""What the RLVR pipeline reads differently: a step is prompts and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from roll.config.base import ConfigModel
from roll.config.prompt_keys import PromptKeys
from roll.config.worker import GeneratingArgs


class RLVRKeys(PromptKeys):
    """The keys of an RLVR run; :class:`roll.config.rlvr.RLVRConfig` adds what they mean together."""

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
    def sampled_per_step(self) -> int:
        """Responses of a training step: ``rollout_batch_size`` prompts with so many responses each."""
        return self.rollout_batch_size * self.num_return_sequences_in_group

    def sampled_in_words(self) -> str:
        """Return the keys that make :attr:`sampled_per_step`, with their values."""
        responses = self.num_return_sequences_in_group
        if responses == 1:
            return super().sampled_in_words()
        product = f"{super().sampled_in_words()} × num_return_sequences_in_group {responses}"
        return f"{product} = {self.sampled_per_step} trajectories"

    @property
    def val_generating(self) -> GeneratingArgs:
        """Sampling of evaluations: ``validation.generating_args`` before ``val_generating_args`` before training's."""
        return self.validation_generating


def _as_mapping(section: Any) -> Mapping[str, Any] | None:
    """Return the keys that were set in a section; ``None`` for what is none, which validation reports."""
    if isinstance(section, ConfigModel):
        return section.model_dump(exclude_unset=True)
    return section if isinstance(section, Mapping) else None
