"""The keys that the RLVR pipeline adds: prompts from files, rewards from verifiers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, FiniteFloat, model_validator

from roll.config.base import ConfigModel, NameList
from roll.config.rl import RLConfig
from roll.config.worker import CustomClass, DataArgs, GeneratingArgs, NonNegative, Positive, WorkerConfig

DOMAIN_VERIFIERS: Final[Mapping[str, str]] = {
    "math_rule": "math",
    "code_sandbox": "code",
    "crossthinkqa": "multiple_choice",
    "multiple_choice": "multiple_choice",
    "ifeval": "ifeval",
    "llm_judge": "llm_judge",
    "math": "math",
    "code": "code",
}
"""The verifier of a domain that names none."""


class VerifierConfig(ConfigModel):
    """One verifier of a domain."""

    weight: float = Field(
        1.0,
        allow_inf_nan=False,
        description="What its score is multiplied with. 0 reports it without rewarding it.",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Options of the verifier.")

    @model_validator(mode="before")
    @classmethod
    def _weight_alone(cls, data: Any) -> Any:
        return {"weight": data} if isinstance(data, int | float) and not isinstance(data, bool) else data


class QueryFilterConfig(ConfigModel):
    """Which groups are kept by the scores of their members."""

    type: Literal["no_filter", "mean_filter", "std_filter"] = Field(
        "no_filter", description="Nothing, by the mean score of a group, or by its deviation."
    )
    filter_args: dict[str, float] = Field(
        default_factory=dict,
        description="`mean_filter`: `threshold_down` ≤ mean ≤ `threshold_up`; `std_filter`: deviation > "
        "`std_threshold`.",
    )


class RewardConfig(WorkerConfig):
    """How the responses to the prompts of one domain are graded."""

    tag_included: NameList = Field(
        default_factory=list, description="Tags of the rows that belong here. Empty: the name of the domain itself."
    )
    verifiers: dict[str, VerifierConfig] = Field(
        default_factory=dict,
        description="Verifiers with their weights, `{math: 1.0, format: 0.1}`; the first decides what counts as "
        "correct. Empty: the one that belongs to the domain's name (`math_rule`, `code_sandbox`, …).",
    )
    verifier_function: NameList | None = Field(None, description="The same as a list of names, with `verifier_weight`.")
    verifier_weight: list[FiniteFloat] | None = Field(None, description="The weights of `verifier_function`.")
    verifier_parallel: Positive = Field(4, description="Responses graded at the same time in this domain.")
    verifier_timeout: Annotated[float, Field(gt=0)] = Field(30.0, description="Seconds that one verdict may take.")
    success_threshold: float = Field(1.0, description="Score of the first verifier from which a response is correct.")
    query_filter_config: QueryFilterConfig = Field(
        default_factory=QueryFilterConfig, description="Which groups of this domain are trained on."
    )

    def terms(self, domain: str) -> dict[str, VerifierConfig]:
        """Return the verifiers of ``domain`` by name, however they were spelled; empty if none is known."""
        if self.verifiers:
            return self.verifiers
        if self.verifier_function:
            weights = self.verifier_weight or [1.0] * len(self.verifier_function)
            return {
                name: VerifierConfig(weight=weight)
                for name, weight in zip(self.verifier_function, weights, strict=True)
            }
        name = DOMAIN_VERIFIERS.get(domain)
        return {} if name is None else {name: VerifierConfig()}

    def tags(self, domain: str) -> list[str]:
        """Return the tags of the rows that belong to ``domain``."""
        return list(self.tag_included) or [domain]


class ValidationConfig(ConfigModel):
    """Evaluation of the RLVR pipeline."""

    data_args: DataArgs = Field(default_factory=DataArgs, description="Validation files; metrics are per tag.")
    generating_args: GeneratingArgs | None = Field(
        None,
        description="Sampling of evaluations; unset keys are those of training. `num_return_sequences` responses per "
        "prompt give mean@k and pass@k.",
    )


class RLVRKeys(RLConfig):
    """The keys of prompts and rewards; :class:`roll.config.rlvr.RLVRConfig` adds what they mean together."""

    rewards: dict[str, RewardConfig] = Field(
        default_factory=dict, description="Domains by name: which rows belong to each, and how they are graded."
    )
    custom_reward_function: CustomClass | None = Field(
        None,
        description="A reward function of your own. It grades every domain that names no verifier, and those that "
        "name it: `verifiers: {compute_score: 1.0, format: 0.1}`.",
    )
    reward_modules: NameList = Field(
        default_factory=list, description="Python modules to import that register verifiers of your own."
    )
    validation: ValidationConfig | None = Field(None, description="Evaluation. null: none.")
    max_concurrent_rewards: NonNegative = Field(0, description="Responses graded at a time in all; 0 is no limit.")

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
