"""The keys of rewards: verifiers by domain, and rewards of whole groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, FiniteFloat, model_validator

from roll.config.base import ConfigModel, NameList
from roll.config.errors import Problem
from roll.config.judges import JUDGES, JudgeConfig, judge_problems
from roll.config.operators import OperatorsConfig
from roll.config.sampling import SamplingConfig
from roll.config.worker import CustomClass, NonNegative, Positive, WorkerConfig

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
        default_factory=list,
        description="Tags of the rows or environments that belong here. Empty: the name of the domain itself.",
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


class GradedKeys(SamplingConfig):
    """The keys of pipelines whose trajectories verifiers may grade."""

    rewards: dict[str, RewardConfig] = Field(
        default_factory=dict,
        description="Domains by name: which rows or environment tags belong to each, and how their responses are "
        "graded. The grade of an episode is added to its environment's reward.",
    )
    operators: OperatorsConfig = Field(
        default_factory=OperatorsConfig,
        description="What is done to tasks before they are played, and to groups before they are learned from or kept.",
    )
    custom_reward_function: CustomClass | None = Field(
        None,
        description="A reward function of your own. It grades every domain that names no verifier, and those that "
        "name it: `verifiers: {compute_score: 1.0, format: 0.1}`.",
    )
    judges: dict[str, JudgeConfig] = Field(
        default_factory=dict,
        description="Models of the run that grade, by name, each with engines of its own: `llm_judge` asks the one "
        "that its option `engine` names.",
    )
    reward_modules: NameList = Field(
        default_factory=list, description="Python modules to import that register verifiers of your own."
    )
    max_concurrent_rewards: NonNegative = Field(0, description="Responses graded at a time in all; 0 is no limit.")
    group_reward: dict[str, VerifierConfig] = Field(
        default_factory=dict,
        description="Rewards of a group as a whole, with their weights, `{distinct: 0.1}`: each sees all members of a "
        "training group, and gives every member a number that is added to its score.",
    )

    def roles(self) -> Iterator[tuple[str, WorkerConfig]]:
        """Yield the name and keys of every role that the run has."""
        yield from super().roles()
        yield from ((f"{JUDGES}.{name}", judge) for name, judge in self.judges.items())

    def problems(self) -> Iterator[Problem]:
        """Yield every contradiction between keys that are each valid alone."""
        yield from super().problems()
        others = {name: worker for name, worker in self.roles() if not name.startswith(f"{JUDGES}.")}
        yield from judge_problems(self.judges, others)

    @property
    def graded_domains(self) -> list[str]:
        """The domains that are graded; one without a name where there must be rewards and none says which."""
        return list(self.rewards) or ([""] if self.needs_rewards else [])
