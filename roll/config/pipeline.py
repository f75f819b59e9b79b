"""The keys that every pipeline has: the run, its schedule, lengths, cluster, tracking and roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from roll.config.algorithm import AlgorithmConfig, SamplerCorrection
from roll.config.base import OUTPUT, ConfigModel, EnvironmentVariables, NameList
from roll.config.errors import Problem
from roll.config.origins import Origins
from roll.config.trackers import TRACKERS
from roll.config.user_modules import imported
from roll.config.weight_sync import WeightSyncConfig
from roll.config.worker import AtOnce, GeneratingArgs, NonNegative, Positive, TrainWorkerConfig, WorkerConfig

"""Names of ``track_with``."""

ROLES: Final = ("actor_train", "actor_infer", "reference", "critic", "reward")
"""Names of the roles, in the order in which they are shown."""

_DEFAULT_LENGTH: Final = 1024

ConfigPath = Annotated[Path, Field(strict=False)]


class CheckpointConfig(ConfigModel):
    """Where checkpoints go and how many stay."""

    type: Literal["file_system"] = Field("file_system", description="Kind of storage.")
    output_dir: ConfigPath | None = Field(None, description="Folder. null: `output_dir`/checkpoints.")
    keep: Positive = Field(2, description="Newest checkpoints that are kept.")


class DynamicSampling(ConfigModel):
    """Replacement of groups that teach nothing by further ones."""

    enable: bool = Field(False, description="Groups whose scores are all equal are replaced by new levels or prompts.")
    max_batches: Positive = Field(
        8, description="Groups tried per step, in batches; after that the step trains on the groups it has."
    )


class PipelineConfig(AlgorithmConfig):
    """Base of every pipeline's configuration."""

    program: ClassVar[str] = ""
    """The program that reads such a configuration."""

    # The run
    exp_name: str = Field(
        "roll",
        description="Name of the experiment, used in files and logs. Unset: that of the configuration's file, without "
        "`.yaml`.",
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(42, description="Seed of everything random.")
    deterministic: bool = Field(True, description="The same seed gives the same run, bit for bit.")
    pretrain: str = Field("toy", description="The policy: `toy`, `toy_math`, `smollm2` (built in), a path or a hub id.")
    reward_pretrain: str | None = Field(None, description="Model of critic and reward. null: `pretrain`.")
    output_dir: ConfigPath = Field(OUTPUT, description="Folder of everything that a run writes.")
    logging_dir: ConfigPath | None = Field(None, description="Folder of logs. null: `output_dir`/logs.")
    render_save_dir: ConfigPath | None = Field(None, description="Folder of review pages. null: `output_dir`/render.")
    system_envs: EnvironmentVariables = Field(default_factory=dict, description="Environment of every process.")
    rpc_timeout: Annotated[float, Field(gt=0)] = Field(3600, description="Seconds a call to another process may take.")

    # Tracking
    track_with: NameList = Field(
        default_factory=lambda: ["tensorboard"],
        description=f"Tracker or list of trackers: {', '.join(f'`{name}`' for name in TRACKERS)}.",
    )
    tracker_kwargs: dict[str, Any] = Field(default_factory=dict, description="Options handed to the tracker.")
    tracker_modules: NameList = Field(
        default_factory=list, description="Python modules to import that register trackers of your own."
    )
    strategy_modules: Annotated[NameList, AfterValidator(imported)] = Field(
        default_factory=list, description="Python modules to import that register engines and trainers of your own."
    )
    progress: Literal["auto", "live", "lines", "none"] = Field(
        "auto", description="What the terminal shows; auto: a live dashboard on a terminal, else one line per step."
    )
    trajectory_dump_steps: NonNegative = Field(
        1, description="Write the trajectories of every n-th step as parquet; 0 is never."
    )

    # Schedule
    max_steps: NonNegative = Field(500, description="Training steps of the run.")
    save_steps: NonNegative = Field(50, description="Steps between checkpoints; 0 saves at the end only.")
    logging_steps: Positive = Field(1, description="Steps between logged metrics.")
    eval_steps: NonNegative = Field(10, description="Steps between evaluations; 0 is never.")
    resume_from_checkpoint: bool | str = Field(
        False, description="true resumes the newest checkpoint of the run, a path resumes that one."
    )
    checkpoint_config: CheckpointConfig = Field(default_factory=CheckpointConfig, description="Checkpoint options.")

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

    # Machines
    cluster: Literal["local", "ray"] = Field("local", description="`local`: everything in this process; `ray`: actors.")
    num_nodes: Positive | None = Field(None, description="Machines. null: as many as the devices in use need.")
    num_gpus_per_node: Positive = Field(1, description="Devices of one machine.")
    max_recoveries: NonNegative = Field(
        3,
        description="Times in a row that a run with `cluster: ray` goes on by itself from its newest checkpoint after "
        "it lost a train rank or a machine.",
    )
    weight_sync: WeightSyncConfig = Field(
        default_factory=WeightSyncConfig, description="How new weights reach engines in other processes."
    )
    enable_ray_timeline: bool = Field(
        False, description="`cluster: ray`: write what every process did when to `output_dir`/timeline.json."
    )
    local_rank: int = Field(-1, description="Rank within the machine, set by launchers; -1 outside them.")

    # Requests
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
    variables: dict[str, Any] = Field(
        default_factory=dict, description="Values of your own, to interpolate as `${variables.name}`."
    )

    _origins: Origins = PrivateAttr(default_factory=Origins)

    @property
    def origins(self) -> Origins:
        """Where the keys came from."""
        return self._origins

    def from_origins(self, origins: Origins) -> Self:
        """Return this configuration, which remembers where its keys came from."""
        self._origins = origins
        return self

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
    def chat_template(self) -> str | None:
        """The chat template; ``None`` for the one of the tokenizer."""
        chosen = self.actor_train.data_args.template
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
    def logs_path(self) -> Path:
        """Folder of logs and tracker files."""
        return self.logging_dir or self.output_dir / "logs"

    @property
    def render_path(self) -> Path:
        """Folder of the review pages."""
        return self.render_save_dir or self.output_dir / "render"

    @property
    def checkpoint_path(self) -> Path:
        """Folder of the checkpoints."""
        return self.checkpoint_config.output_dir or self.output_dir / "checkpoints"

    @property
    def val_generating(self) -> GeneratingArgs:
        """Sampling options of evaluations."""
        changes = self.val_generating_args.model_dump(exclude_unset=True) if self.val_generating_args else {}
        return self.actor_infer.generating_args.model_copy(update=changes)

    @property
    def nodes(self) -> int:
        """Number of machines: ``num_nodes``, else as many as the highest device id needs."""
        if self.num_nodes is not None:
            return self.num_nodes
        highest = max((max(worker.device_mapping or [0]) for _, worker in self.roles()), default=0)
        return highest // self.num_gpus_per_node + 1

    def problems(self) -> Iterator[Problem]:
        """Yield every contradiction between keys that are each valid alone."""
        # Imported here because the checks are about this class.
        from roll.config.checks import pipeline_problems

        return pipeline_problems(self)

    def cautions(self) -> Iterator[str]:
        """Yield what has no effect or probably not the one that was meant."""
        from roll.config.checks import pipeline_cautions

        return pipeline_cautions(self)
