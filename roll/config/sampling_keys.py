"""The keys of every run that samples from the policy it trains: batches, lengths, requests, engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from roll.config.base import ConfigModel
from roll.config.over_rollout import OverRollout
from roll.config.trainer_keys import TrainerKeys
from roll.config.weight_sync import WeightSyncConfig
from roll.config.worker import AtOnce, GeneratingArgs, NonNegative, Positive, WorkerConfig

_DEFAULT_LENGTH: Final = 1024

DivergenceKind = Literal["reverse_kl", "forward_kl", "jsd"]


class DynamicSampling(ConfigModel):
    """Replacement of groups that teach nothing by further ones."""

    enable: bool = Field(False, description="Groups whose scores are all equal are replaced by new levels or prompts.")
    max_batches: Positive = Field(
        8, description="Groups tried per step, in batches; after that the step trains on the groups it has."
    )


class SamplingKeys(TrainerKeys):
    """The keys of sampling; :class:`roll.config.sampling.SamplingConfig` adds what they mean together."""

    trajectory_dump_steps: NonNegative = Field(
        1, description="Write the trajectories of every n-th step as parquet; 0 is never."
    )

    reward_pretrain: str | None = Field(None, description="Model of critic and reward. null: `pretrain`.")

    # Batches and lengths
    rollout_batch_size: AtOnce = Field(128, description="Agentic: episodes of a training step; RLVR: prompts.")
    val_batch_size: AtOnce = Field(
        128, description="Agentic: episodes of an evaluation; RLVR: prompts that are answered at a time."
    )
    mini_batches: Positive | None = Field(
        None,
        description="Optimiser steps per pass over the rollout batch. null: rollout batch / "
        "(`per_device_train_batch_size` · `gradient_accumulation_steps` · data-parallel width).",
    )
    prompt_length: Positive | None = Field(None, description="Most tokens of a prompt. null: `sequence_length`.")
    response_length: Positive | None = Field(
        None,
        description="RLVR: most tokens of a response, which is `actor_infer.generating_args.max_new_tokens` unless "
        "that is set. Agentic: what `sequence_length` and `overlong_buffer` reckon with for all responses of an "
        "episode; `max_new_tokens` and `max_tokens_per_step` limit each. null: `sequence_length`.",
    )
    sequence_length: Positive = Field(
        2 * _DEFAULT_LENGTH,
        description="Most tokens of a sample, prompts and responses together. Unset: `prompt_length` + "
        "`response_length`.",
    )
    num_return_sequences_in_group: AtOnce = Field(1, description="Responses per prompt.")
    dynamic_sampling: DynamicSampling = Field(
        default_factory=DynamicSampling, description="Replacement of groups without variance."
    )
    is_num_return_sequences_expand: bool = Field(
        False, description="Repeat a prompt instead of asking for n responses."
    )

    # Weights and requests
    weight_sync: WeightSyncConfig = Field(
        default_factory=WeightSyncConfig, description="How new weights reach engines in other processes."
    )
    generate_opt_level: Literal[0, 1] = Field(1, description="0: whole batches; 1: a scheduler routes requests.")
    max_running_requests: AtOnce = Field(128, description="Most requests at one engine at a time.")
    max_retry_times: NonNegative = Field(
        0, description="Times that a group all of whose members broke is played again before it counts as failed."
    )
    generation_timeout: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Seconds an engine may take for a request; then another engine is tried. null: any time."
    )
    is_use_additional_prompts: bool = Field(False, description="Start more prompts than a batch needs.")
    max_additional_running_prompts: NonNegative = Field(16, description="How many more.")
    async_generation_ratio: Annotated[float, Field(ge=0)] = Field(
        0.0, description="Steps that sampling may run ahead of training; 0 is synchronous and reproducible."
    )
    over_rollout: OverRollout = Field(
        default_factory=OverRollout, description="Groups that a step begins beyond its own, to leave the latest ones."
    )
    group_size_redundancy: NonNegative = Field(
        0, description="Spare members of each group, trained on only in place of members that break."
    )
    straggler_timeout: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="Seconds that members may go on once enough others of their group are finished, where there are "
        "spare ones; leaves out long episodes, so set it far above what an honest one takes. null: wait for all.",
    )

    # Roles
    actor_infer: WorkerConfig = Field(default_factory=WorkerConfig, description="The policy that samples.")
    val_generating_args: GeneratingArgs | None = Field(
        None, description="Sampling of evaluations; keys that are not set are those of `actor_infer.generating_args`."
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_lengths(cls, data: Any) -> Any:
        """Let the sequence length follow from prompt and response length, as the guide describes them."""
        if not isinstance(data, Mapping) or data.get("sequence_length") is not None:
            return data
        parts = [data.get("prompt_length") or _DEFAULT_LENGTH, data.get("response_length") or _DEFAULT_LENGTH]
        if all(isinstance(part, int) for part in parts):
            return {**data, "sequence_length": sum(parts)}
        return data

    @property
    def is_stale(self) -> bool:
        """Whether engines may sample with older weights than those that are trained."""
        return self.async_generation_ratio > 0 or self.actor_infer.model_update_frequency > 1

    @property
    def learns_from_store(self) -> bool:
        """Whether it learns from what other runs sampled."""
        return False

    @property
    def overlaps(self) -> bool:
        """Whether roles work at the same time."""
        return self.async_generation_ratio > 0

    @property
    def groups_per_step(self) -> int:
        """Groups of a training step."""
        raise NotImplementedError(f"{type(self).__name__} does not say how many groups a step has.")

    @property
    def groups_by_source(self) -> Mapping[str, int]:
        """Groups of a training step, by what they are of: prompts, or levels of a tag."""
        return {"prompts": self.groups_per_step}

    @property
    def sampled_per_step(self) -> int:
        """Trajectories that a training step samples."""
        return self.rollout_batch_size

    @property
    def leased_per_step(self) -> int | None:
        """Trajectories that a training step learns from, where it takes them from a store in another number."""
        return None

    @property
    def samples_per_step(self) -> int:
        """Trajectories of a training step."""
        return self.leased_per_step or self.sampled_per_step

    def sampled_in_words(self) -> str:
        """Return the keys that make :attr:`sampled_per_step`, with their values."""
        return f"rollout_batch_size {self.rollout_batch_size}"

    def samples_in_words(self) -> str:
        """Return the keys that make :attr:`samples_per_step`, with their values."""
        leased = self.leased_per_step
        return self.sampled_in_words() if leased is None else f"experience.train_batch_size {leased}"

    def expert_rows_beside(self, sampled: int) -> int:
        """Return the rows of experts that learn in one optimiser step with so many sampled trajectories."""
        return 0

    @property
    def epochs_per_rollout(self) -> int:
        """Passes over each rollout batch."""
        return 1

    def roles(self) -> Iterator[tuple[str, WorkerConfig]]:
        """Yield the name and keys of every role that the run has."""
        yield from super().roles()
        yield "actor_infer", self.actor_infer

    @property
    def val_generating(self) -> GeneratingArgs:
        """Sampling options of evaluations."""
        changes = self.val_generating_args.model_dump(exclude_unset=True) if self.val_generating_args else {}
        return self.actor_infer.generating_args.model_copy(update=changes)
