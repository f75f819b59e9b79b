"""The keys that the agentic pipeline adds: environments, and prompts beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field, model_validator

from roll.config.base import NameList
from roll.config.env_manager import CustomEnvConfig, EnvManagerConfig, RewardNormalization, ValEnvManagerConfig
from roll.config.opponents import OPPONENTS, OpponentConfig
from roll.config.prompt_keys import PromptKeys
from roll.config.worker import NonNegative, Positive, WorkerConfig


class AgenticKeys(PromptKeys):
    """The keys of environments; :class:`roll.config.agentic.AgenticConfig` adds what they mean together."""

    reward_normalization: RewardNormalization = Field(
        default_factory=RewardNormalization, description="Normalisation of episode scores."
    )
    train_env_manager: EnvManagerConfig = Field(
        default_factory=EnvManagerConfig, description="Environments of training."
    )
    val_env_manager: ValEnvManagerConfig = Field(
        default_factory=ValEnvManagerConfig, description="Environments of evaluation."
    )
    prompts_per_step: NonNegative = Field(
        0,
        description="Prompts of each training step beside its episodes, from `actor_train.data_args` and with "
        "`num_return_sequences_in_group` responses each; `rewards` says how they are graded.",
    )
    custom_envs: dict[str, CustomEnvConfig] = Field(
        default_factory=dict, description="Tags by name, added to those that are registered in Python."
    )
    custom_env: dict[str, CustomEnvConfig] = Field(
        default_factory=dict, description="A library of tags, to refer to as `${custom_env.SimpleSokoban}`."
    )

    opponents: dict[str, OpponentConfig] = Field(
        default_factory=dict,
        description="Models by name that have seats of games (`seats` of an environment) and are not trained: "
        "`{start: {}}` is the policy before training.",
    )
    env_modules: NameList = Field(
        default_factory=list,
        description="Python modules to import that register environments of your own; looked for in the working "
        "directory too.",
    )

    # Values that exist to be interpolated into tags
    max_actions_per_traj: Positive | None = Field(None, description="Most turns, for interpolation into tags.")
    max_tokens_per_step: Positive | None = Field(None, description="Tokens per turn, for interpolation into tags.")
    action_pattern: str | None = Field(None, description="Regular expression of an answer, for interpolation.")
    think_action_pattern: str | None = Field(None, description="The same with thinking before the answer.")
    all_response_pattern: str | None = Field(None, description="The same where the whole response is the answer.")
    sokoban_format_penalty: float | None = Field(None, description="Format penalty, for interpolation.")
    frozen_format_penalty: float | None = Field(None, description="Format penalty, for interpolation.")
    env_manager_cls: str | None = Field(None, description="Env manager, for interpolation into tags.")
    agent_system_template: str | None = Field(None, description="System prompt, for interpolation into tags.")
    agent_template: str | None = Field(None, description="User prompt, for interpolation into tags.")

    @model_validator(mode="before")
    @classmethod
    def _fill_batch_sizes(cls, data: Any) -> Any:
        """Let batch size and number of groups follow from each other where only one of them is set."""
        if not isinstance(data, Mapping):
            return data
        filled = dict(data)
        _fill_batch_size(filled, "rollout_batch_size", "train_env_manager", EnvManagerConfig)
        _fill_batch_size(filled, "val_batch_size", "val_env_manager", ValEnvManagerConfig)
        return filled

    def roles(self) -> Iterator[tuple[str, WorkerConfig]]:
        """Yield the name and keys of every role that the run has."""
        yield from super().roles()
        for name, opponent in self.opponents.items():
            yield f"{OPPONENTS}.{name}", opponent

    @property
    def sampled_per_step(self) -> int:
        """Trajectories of a training step: episodes, and responses to prompts."""
        if not self.prompts_per_step:
            return self.rollout_batch_size
        return self.rollout_batch_size + self.prompts_per_step * self.num_return_sequences_in_group

    def sampled_in_words(self) -> str:
        """Return the keys that make :attr:`sampled_per_step`, with their values."""
        if not self.prompts_per_step:
            return super().sampled_in_words()
        prompts = f"prompts_per_step {self.prompts_per_step}"
        responses = f"num_return_sequences_in_group {self.num_return_sequences_in_group}"
        return f"{super().sampled_in_words()} + {prompts} × {responses} = {self.sampled_per_step} trajectories"

    @property
    def played_tags(self) -> set[str]:
        """The tags of training and evaluation."""
        return {*self.train_env_manager.tags, *self.val_env_manager.tags}

    @property
    def prompt_tags(self) -> dict[str, list[str]]:
        """The domains that prompts may belong to, with their tags: those that do not grade environments only."""
        return {domain: tags for domain, tags in super().prompt_tags.items() if not self.played_tags >= set(tags)}

    def tags(self) -> dict[str, CustomEnvConfig]:
        """Return every tag of the configuration; ``custom_envs`` wins over the library ``custom_env``."""
        return {**self.custom_env, **self.custom_envs}

    def section_of(self, tag: str) -> str | None:
        """Return the section that says what a tag is; ``None`` for one of the library or of a module."""
        return next((name for name in ("custom_envs", "custom_env") if tag in getattr(self, name)), None)

    def tag_mappings(self) -> dict[str, dict[str, Any]]:
        """Return every tag as a plain mapping, as the environment registry takes it."""
        return {name: tag.tag_mapping() for name, tag in self.tags().items()}


def _fill_batch_size(data: dict[str, Any], batch_key: str, manager_key: str, kind: type[EnvManagerConfig]) -> None:
    manager = data.get(manager_key, {})
    if not isinstance(manager, Mapping):
        return
    groups = manager.get("env_groups", manager.get("num_env_groups"))
    partition = manager.get("n_groups", manager.get("num_groups_partition"))
    if groups is None and isinstance(partition, list) and all(isinstance(item, int) for item in partition):
        groups = sum(partition) or None
    group_size = manager.get("group_size", kind.model_fields["group_size"].default)
    batch = data.get(batch_key)
    if not isinstance(group_size, int) or group_size < 1:
        return
    if groups is None and isinstance(batch, int):
        # A batch that the group size does not divide is reported by the checks, with values that would fit.
        groups = max(1, batch // group_size)
    elif groups is None:
        groups = kind.model_fields["env_groups"].default
    if batch is None and isinstance(groups, int):
        data[batch_key] = groups * group_size
    given = {key: value for key, value in manager.items() if value is not None or key not in _GROUP_KEYS}
    if not _GROUP_KEYS & given.keys():
        given["env_groups"] = groups
    data[manager_key] = given


_GROUP_KEYS = frozenset({"env_groups", "num_env_groups"})
