"""The keys of environment tags and of the managers that run their episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from roll.config.base import ConfigModel, EnvironmentVariables, NameList
from roll.config.tool_use import ToolNames, ToolUse
from roll.config.worker import NonNegative, Positive, Seconds

_GROUPING_ALIASES: Mapping[str, str] = {"traj_group_id": "state", "tags": "inductive"}


class CustomEnvConfig(ConfigModel):
    """A tag: an environment type, its options, the prompts and the limits."""

    env_type: str = Field(description="Environment type (`sokoban`, `frozen_lake`, or one that you registered).")
    env_config: dict[str, Any] = Field(default_factory=dict, description="Options of the environment.")
    max_steps: Positive | None = Field(None, description="Most turns of an episode. null: the environment's own.")
    max_tokens_per_step: Positive | None = Field(
        None, description="Most tokens of one response. null: `actor_infer.generating_args.max_new_tokens`."
    )
    env_manager_cls: str | None = Field(None, description="Import path of the env manager. null: that of the type.")
    agent_system_template: str | None = Field(None, description="System prompt; may use `{instruction}`. Empty: none.")
    agent_template: str | None = Field(
        None,
        description="User prompt of a turn: `{turn_idx}`, `{observation}`, `{actions_left}`, `{max_response_length}`.",
    )
    show: Literal["text", "picture", "both"] = Field(
        "text",
        description="What the policy sees of a state in place of `{observation}`: its text, the picture that the "
        "environment draws (`render_mode: rgb_array`), or the picture above the text. Pictures take a "
        "vision-language model.",
    )
    use_thread_lock: bool = Field(False, description="The environment is not thread-safe: one call at a time.")
    max_env_step_concurrent: NonNegative = Field(
        0, description="Most calls at a time in a worker; 0: as many as there are episodes, 4096 threads at most."
    )

    tools: ToolNames = Field(
        default_factory=list,
        description="Tools that the policy may call beside its actions: names, or a name with its options.",
    )
    tool_use: ToolUse = Field(default_factory=ToolUse, description="How calls of tools are read, limited and charged.")

    def tag_mapping(self) -> dict[str, Any]:
        """Return the keys of the tag itself that were set, as plain values, for the environment registry."""
        left_out = {"use_thread_lock", "max_env_step_concurrent"}
        if not self.tools:
            left_out |= {"tools", "tool_use"}
        if self.show == "text":
            left_out.add("show")
        return self.model_dump(exclude=left_out, exclude_none=True)


class Timeouts(ConfigModel):
    """Seconds that a phase of an episode may take before the episode ends with an error."""

    reset: Seconds = Field(60.0, description="Seconds for `reset`.")
    step: Seconds = Field(60.0, description="Seconds for `step`.")
    generate: Seconds = Field(600.0, description="Seconds for one response.")


class RewardNormalization(ConfigModel):
    """How episode scores are normalised before advantages."""

    grouping: Literal["state", "batch", "inductive"] = Field(
        "state", description="Who is compared: same start `state`, whole `batch`, same tag (`inductive`)."
    )
    method: Literal["identity", "mean", "mean_std", "asym_clip"] = Field(
        "identity", description="Nothing, minus mean, also over deviation, also clamped to [-1, 3]."
    )

    @field_validator("grouping", mode="before")
    @classmethod
    def _grouping_alias(cls, value: Any) -> Any:
        return _GROUPING_ALIASES.get(value, value) if isinstance(value, str) else value


class CurriculumConfig(ConfigModel):
    """Which of the tags each group plays, and levels of which difficulty, by their success so far."""

    choose: Literal["in_order", "learning_progress"] = Field(
        "in_order",
        description="The first of `tags` that is not mastered, or those more often whose success changes.",
    )
    mastered_at: Annotated[float, Field(gt=0, le=1)] = Field(
        0.7, description="Share of episodes that succeed from which on a tag is mastered."
    )
    others: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.25,
        description="Share of groups of other tags: of those mastered before it, or with `learning_progress` of all in "
        "turn.",
    )
    difficulty: dict[str, Annotated[list[float], Field(min_length=1)]] = Field(
        default_factory=dict,
        description="By tag: bounds, from easy to hard, between which its levels are tags of their own, by what its "
        "environment says of their difficulty (of `sokoban`: pushes).",
    )


class EnvManagerConfig(ConfigModel):
    """How many episodes of which tags run."""

    key_aliases: ClassVar[Mapping[str, str]] = {"num_env_groups": "env_groups", "num_groups_partition": "n_groups"}

    env_groups: Positive = Field(
        16, description="Groups of environments. Unset: from the batch size, or the sum of `n_groups`."
    )
    group_size: Positive = Field(8, description="Environments of a group; they share tag, options and seed.")
    tags: NameList = Field(default_factory=lambda: ["SimpleSokoban"], description="Environment tags.", min_length=1)
    n_groups: list[NonNegative] | None = Field(
        None, description="Groups of each tag, in the order of `tags`. null: equal shares."
    )
    curriculum: CurriculumConfig | None = Field(
        None,
        description="Instead of shares: the tag of each group follows from success so far; name `tags` from easy to "
        "hard. `{}` is one. In training alone.",
    )
    max_traj_per_env: Annotated[int, Field(ge=-1)] = Field(
        -1, description="Most episodes of one environment per step; -1 is no limit."
    )
    format_penalty: float | None = Field(
        None, description="Reward of a response without a valid action; replaces the `env_config`'s."
    )
    max_steps: Positive | None = Field(None, description="Most turns of an episode; replaces the tag's.")
    max_env_num_per_worker: NonNegative = Field(0, description="Environments of one worker; 0 is no limit.")
    worker_cls: str | None = Field(None, description="Import path of the worker class. null: the project's.")
    sample_mode: Literal["trajectory", "step"] = Field(
        "trajectory", description="One training sample per episode, or one per turn."
    )
    compare_seats: Literal["seat", "game"] = Field(
        "seat",
        description="Where the policy has several seats of a game, whom a seat is compared with: the same seat of the "
        "group's other games, or every seat of all of them.",
    )
    timeouts: Timeouts = Field(default_factory=Timeouts, description="Seconds per phase of an episode.")
    max_retries: NonNegative = Field(
        2,
        description="How often an episode is begun again, with the same seed and noise, that timed out or whose server "
        "was gone.",
    )
    retry_wait: Seconds = Field(1.0, description="Seconds before the first of them; doubled before each further one.")
    system_envs: EnvironmentVariables = Field(default_factory=dict, description="Environment of the workers.")

    @property
    def environments(self) -> int:
        """Number of environments that run at the same time."""
        return self.env_groups * self.group_size

    def groups_per_tag(self) -> list[tuple[str, int]]:
        """Return how many groups each tag gets, in the order of ``tags``.

        With a curriculum, which shares nothing out beforehand, that is one entry with all the names.

        Raises:
            ValueError: ``n_groups`` does not fit ``tags`` and ``env_groups``, or equal shares leave a remainder.
        """
        if self.curriculum is not None:
            return [(" → ".join(self.tags), self.env_groups)]
        if self.n_groups is None:
            share, remainder = divmod(self.env_groups, len(self.tags))
            if remainder or share == 0:
                raise ValueError(f"{self.env_groups} groups cannot be shared equally by {len(self.tags)} tags")
            return [(tag, share) for tag in self.tags]
        if len(self.n_groups) != len(self.tags) or sum(self.n_groups) != self.env_groups:
            raise ValueError(f"n_groups {self.n_groups} does not share {self.env_groups} groups among {self.tags}")
        return list(zip(self.tags, self.n_groups, strict=True))


class ValEnvManagerConfig(EnvManagerConfig):
    """The same for evaluation: many levels, one episode each."""

    env_groups: Positive = Field(
        128, description="Groups of environments. Unset: from the batch size, or the sum of `n_groups`."
    )
    group_size: Positive = Field(1, description="Environments of a group; they share tag, options and seed.")
