"""The keys that every run of reinforcement learning has: policy, batches, lengths, requests and roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from roll.config.algorithm import AlgorithmConfig, SamplerCorrection
from roll.config.base import ConfigModel
from roll.config.run import RunConfig
from roll.config.weight_sync import WeightSyncConfig
from roll.config.worker import AtOnce, DataArgs, GeneratingArgs, NonNegative, Positive, TrainWorkerConfig, WorkerConfig

ROLES: Final = ("actor_train", "actor_infer", "reference", "critic", "reward")
"""Names of the roles, in the order in which they are shown."""

_DEFAULT_LENGTH: Final = 1024


class DynamicSampling(ConfigModel):
    """Replacement of groups that teach nothing by further ones."""

    enable: bool = Field(False, description="Groups whose scores are all equal are replaced by new levels or prompts.")
    max_batches: Positive = Field(
        8, description="Groups tried per step, in batches; after that the step trains on the groups it has."
    )


class RLKeys(RunConfig, AlgorithmConfig):
    """The keys of reinforcement learning; :class:`roll.config.rl.RLConfig` adds what they mean together."""

    # The policy
    pretrain: str = Field("toy", description="The policy: `toy`, `toy_math`, `smollm2` (built in), a path or a hub id.")
    reward_pretrain: str | None = Field(None, description="Model of critic and reward. null: `pretrain`.")
    trajectory_dump_steps: NonNegative = Field(
        1, description="Write the trajectories of every n-th step as parquet; 0 is never."
    )

    # Batches and lengths
    rollout_batch_size: AtOnce = Field(128, description="Agentic: trajectories of a training step; RLVR: prompts.")
    val_batch_size: AtOnce = Field(
        128, description="Agentic: trajectories of an evaluation; RLVR: prompts that are answered at a time."
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
    num_return_sequences_in_group: AtOnce = Field(1, description="Responses per prompt (RLVR).")
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
    generation_timeout: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Seconds an engine may take for a request; then another engine is tried. null: any time."
    )
    is_use_additional_prompts: bool = Field(False, description="Start more prompts than a batch needs.")
    max_additional_running_prompts: NonNegative = Field(16, description="How many more.")
    async_generation_ratio: Annotated[float, Field(ge=0)] = Field(
        0.0, description="Steps that sampling may run ahead of training; 0 is synchronous and reproducible."
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
    actor_train: TrainWorkerConfig = Field(default_factory=TrainWorkerConfig, description="The policy being trained.")
    actor_infer: WorkerConfig = Field(default_factory=WorkerConfig, description="The policy that samples.")
    reference: WorkerConfig | None = Field(None, description="Frozen policy that divergence is measured from.")
    critic: TrainWorkerConfig | None = Field(None, description="Value model (`adv_estimator: gae`).")
    reward: WorkerConfig | None = Field(None, description="Reward model.")
    val_generating_args: GeneratingArgs | None = Field(
        None, description="Sampling of evaluations; keys that are not set are those of `actor_infer.generating_args`."
    )

    # Named blocks that exist to be interpolated
    deepspeed_zero: dict[str, Any] | None = Field(None, description="DeepSpeed options, stage 0.")
    deepspeed_zero2: dict[str, Any] | None = Field(None, description="DeepSpeed options, stage 2.")
    deepspeed_zero3: dict[str, Any] | None = Field(None, description="DeepSpeed options, stage 3.")
    deepspeed_zero3_cpuoffload: dict[str, Any] | None = Field(
        None, description="DeepSpeed options, stage 3 with weights and optimiser in main memory."
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
    def correction(self) -> SamplerCorrection:
        """The correction that acts: the one that was set, else on where samples may be stale."""
        chosen = self.sampler_correction
        if self.is_stale and "mode" not in chosen.model_fields_set and self.old_log_probs != "sampler":
            return chosen.model_copy(update={"mode": "tis"})
        return chosen

    @property
    def overlaps(self) -> bool:
        """Whether roles work at the same time."""
        return self.async_generation_ratio > 0

    @property
    def samples_per_step(self) -> int:
        """Trajectories of a training step."""
        return self.rollout_batch_size

    def roles(self) -> Iterator[tuple[str, WorkerConfig]]:
        """Yield the name and keys of every role that the run has."""
        for name in ROLES:
            worker = getattr(self, name)
            if worker is not None:
                yield name, worker

    @property
    def chat_template_key(self) -> str:
        """The key that names the chat template of every conversation with the policy."""
        return "actor_train.data_args.template"

    @property
    def conversation_args(self) -> DataArgs:
        """The section that says how every conversation with the policy is written."""
        return self.actor_train.data_args

    @property
    def chat_template(self) -> str | None:
        """The chat template; ``None`` for the one of the tokenizer."""
        chosen = self.conversation_args.template
        return None if chosen == "native" else chosen

    def model_path(self, role: str) -> str:
        """Return the path or hub id of the model that ``role`` loads."""
        worker: WorkerConfig | None = getattr(self, role)
        if worker is not None and worker.model_args.model_name_or_path is not None:
            return worker.model_args.model_name_or_path
        if role in ("critic", "reward") and self.reward_pretrain is not None:
            return self.reward_pretrain
        return self.pretrain

    @property
    def val_generating(self) -> GeneratingArgs:
        """Sampling options of evaluations."""
        changes = self.val_generating_args.model_dump(exclude_unset=True) if self.val_generating_args else {}
        return self.actor_infer.generating_args.model_copy(update=changes)
