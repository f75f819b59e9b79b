"""The keys that every run has, whatever it does: folders, tracking, schedule, checkpoints, machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr

from roll.config.base import OUTPUT, ConfigModel, EnvironmentVariables, NameList
from roll.config.env_manager import EnvManagerConfig
from roll.config.errors import FixableError, Problem, choose_from
from roll.config.origins import Origins
from roll.config.profiling import ProfileConfig, profile_problems
from roll.config.ranges import read_range
from roll.config.tracing import TracingConfig
from roll.config.trackers import TRACKERS
from roll.config.user_modules import imported
from roll.config.worker import NonNegative, Positive, TrainWorkerConfig, WorkerConfig

ConfigPath = Annotated[Path, Field(strict=False)]


def _never(value: Any) -> Any:
    """ROLL's files write never as -1."""
    return 0 if value == -1 else value


class Plan(Protocol):
    """What the keys of a run amount to."""

    def describe(self) -> str:
        """Return a few lines, for people."""
        ...


@dataclass(frozen=True, slots=True)
class Steps:
    """The plan of a run of which nothing but the number of steps is known."""

    max_steps: int

    def describe(self) -> str:
        """Return one line."""
        return f"run       {self.max_steps} steps"


class CheckpointConfig(ConfigModel):
    """Where checkpoints go and how many stay."""

    type: Literal["file_system"] = Field("file_system", description="Kind of storage.")
    output_dir: ConfigPath | None = Field(None, description="Folder. null: `output_dir`/checkpoints.")
    keep: Positive = Field(2, description="Newest checkpoints that are kept.")
    contents: Literal["all", "weights"] = Field(
        "all",
        description="`weights` leaves out optimiser, schedule and random state: smaller, and a new run may begin with "
        "the weights, but none goes on from it.",
    )
    hf_model: Literal["always", "last", "never"] = Field(
        "always",
        description="Which checkpoints have the model in Hugging Face format too, in `hf`: all, that of `max_steps`, "
        "none.",
    )

    megatron_model: Literal["always", "last", "never"] = Field(
        "never",
        description="Which checkpoints have the model in Megatron's format too, in `megatron`; with `megatron_train`.",
    )

    def problems(self) -> Iterator[Problem]:
        """Yield what contradicts each other."""
        if self.contents == "weights" and self.hf_model != "always":
            path, fix = "checkpoint_config.hf_model", "set it to always, or checkpoint_config.contents to all."
            yield Problem(path, "checkpoints of weights alone are models in Hugging Face format.", fix, self.hf_model)

    def has_hf_model(self, *, is_last: bool) -> bool:
        """Tell whether a checkpoint has the model in Hugging Face format."""
        return self.hf_model == "always" or (self.hf_model == "last" and is_last)

    def has_megatron_model(self, *, is_last: bool) -> bool:
        """Tell whether a checkpoint has the model in Megatron-Core's format."""
        return self.megatron_model == "always" or (self.megatron_model == "last" and is_last)


class RunConfig(ConfigModel):
    """Base of every kind of run: the keys of its life cycle, and what a kind says of itself."""

    program: ClassVar[str] = ""
    """The program that reads such a configuration."""
    samples: ClassVar[bool] = False
    """Whether it samples trajectories."""
    trains: ClassVar[bool] = True
    """Whether it changes weights."""

    # The run
    pipeline: str | None = Field(
        None,
        description="Kind of run: `agentic`, `rlvr`, `sft`, `dpo`, `reward_model`, `distill`, `distill_prompts`, "
        "`distill_rows`, `sample`, `evaluation`, or one of your own. null: what the program runs. Beside `stages`: "
        "that of stages that do not say theirs.",
    )
    pipeline_modules: NameList = Field(
        default_factory=list, description="Python modules to import that register kinds of run of your own."
    )
    exp_name: str = Field(
        "roll",
        description="Name of the experiment, used in files and logs. Unset: that of the configuration's file, without "
        "`.yaml`.",
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(42, description="Seed of everything random.")
    deterministic: bool = Field(
        True, description="The same seed gives the same run, bit for bit; with `cluster: ray` to 1e-5."
    )
    output_dir: ConfigPath = Field(OUTPUT, description="Folder of everything that a run writes.")
    logging_dir: ConfigPath | None = Field(None, description="Folder of logs. null: `output_dir`/logs.")
    render_save_dir: ConfigPath | None = Field(
        None, description="Folder of the review of evaluations. null: `output_dir`/render."
    )
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
    tracing: TracingConfig | None = Field(
        None,
        description="What happened to each episode when, as traces: `file`, or the address of a collector. null: none.",
    )
    profile: ProfileConfig | None = Field(
        None,
        description="PyTorch's profiler: traces of what workers compute, in `output_dir`/profile. null: none.",
    )
    strategy_modules: Annotated[NameList, AfterValidator(imported)] = Field(
        default_factory=list, description="Python modules to import that register engines and trainers of your own."
    )
    progress: Literal["auto", "live", "lines", "notebook", "none"] = Field(
        "auto",
        description="What the terminal shows; auto: a live dashboard on a terminal, else one line per step. "
        "notebook: a few lines below the cell, drawn anew while the run works; what `roll.train` shows in a notebook.",
    )

    # Schedule
    max_steps: NonNegative = Field(500, description="Training steps of the run.")
    save_steps: NonNegative = Field(50, description="Steps between checkpoints; 0 saves at the end only.")
    logging_steps: Positive = Field(1, description="Steps between logged metrics.")
    eval_steps: Annotated[NonNegative, BeforeValidator(_never)] = Field(
        10, description="Steps between evaluations; 0 is never."
    )
    eval_at_start: bool = Field(True, description="Evaluate before the first step too, where `eval_steps` is not 0.")
    resume_from_checkpoint: bool | str = Field(
        False, description="true resumes the newest checkpoint of the run, a path resumes that one."
    )
    checkpoint_config: CheckpointConfig = Field(default_factory=CheckpointConfig, description="Checkpoint options.")

    # Machines
    cluster: Literal["local", "ray"] = Field(
        "local",
        description="`local`: everything in this process; `ray`: actors. Unset: `ray` where workers of a role need a "
        "process each.",
    )
    num_nodes: Positive | None = Field(None, description="Machines. null: as many as the devices in use need.")
    num_gpus_per_node: Positive = Field(1, description="Devices of one machine.")
    max_recoveries: NonNegative = Field(
        3,
        description="Times in a row that a run with `cluster: ray` goes on by itself from its newest checkpoint after "
        "it lost a train rank or a machine.",
    )
    enable_ray_timeline: bool = Field(
        False, description="`cluster: ray`: write what every process did when to `output_dir`/timeline.json."
    )
    local_rank: int = Field(-1, description="Rank within the machine, set by launchers; -1 outside them.")

    variables: dict[str, Any] = Field(
        default_factory=dict, description="Values of your own, to interpolate as `${variables.name}`."
    )

    tune: dict[str, Any] = Field(
        default_factory=dict,
        description="What `roll tune` may set: the path of a key to `{low: 1e-5, high: 1e-3, log: true}`, to a list of "
        "values, or to a word such as `loguniform(1e-5, 1e-3)`. Training does not look at it.",
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

    def plan(self) -> Plan:
        """Return what the keys amount to; it is shown at the start."""
        return Steps(self.max_steps)

    def identity(self) -> dict[str, Any]:
        """Return the keys that must not change when the run is resumed: the outcome would belong to no run."""
        return {"seed": self.seed}

    @property
    def policy(self) -> TrainWorkerConfig | None:
        """The keys of the model that it trains, or that plays; ``None`` where there is none."""
        return None

    @property
    def policy_head(self) -> str | None:
        """What that model has behind its backbone (:data:`roll.config.trainer_keys.Head`)."""
        return None

    @property
    def stores_samples(self) -> bool:
        """Whether trajectories that it samples to learn from are written."""
        return False

    def inner_runs(self) -> Iterator[tuple[str, RunConfig]]:
        """Yield the runs that it consists of, each under the path of its keys; a run that is one consists of none."""
        return iter(())

    def each(self, change: Callable[[RunConfig], RunConfig]) -> RunConfig:
        """Return this run with ``change`` made to all that it consists of."""
        return change(self)

    def roles(self) -> Iterator[tuple[str, WorkerConfig]]:
        """Yield the name and keys of every role that the configuration has."""
        return iter(())

    def worker_roles(self) -> Iterator[tuple[str, WorkerConfig]]:
        """Yield the roles that have workers of their own, as far as the run uses them: they hold models, or grade."""
        return self.roles()

    def environment_roles(self) -> Iterator[tuple[str, EnvManagerConfig]]:
        """Yield the sections whose environments have workers of their own."""
        return iter(())

    @property
    def overlaps(self) -> bool:
        """Whether roles work at the same time, so that each needs a thread where they share a process."""
        return False

    def problems(self) -> Iterator[Problem]:
        """Yield every contradiction between keys that are each valid alone."""
        for index, tracker in enumerate(self.track_with):
            if tracker not in TRACKERS and not self.tracker_modules:
                path = "track_with" if len(self.track_with) == 1 else f"track_with.{index}"
                fix = f"{choose_from(tracker, TRACKERS)} One of your own needs its module in tracker_modules."
                yield Problem(path, "no tracker has this name.", fix, tracker)
        yield from self.checkpoint_config.problems()
        for key, value in self.tune.items():
            try:
                read_range(value)
            except FixableError as error:
                yield Problem(f"tune.{key}", error.message, error.fix, value)
        roles = (*self.worker_roles(), *self.environment_roles())
        yield from profile_problems(self.profile, {name for name, _ in roles})

    def cautions(self) -> Iterator[str]:
        """Yield what has no effect or probably not the one that was meant."""
        return iter(())

    @property
    def logs_path(self) -> Path:
        """Folder of logs and tracker files."""
        return self.logging_dir or self.output_dir / "logs"

    @property
    def render_path(self) -> Path:
        """Folder of the review of evaluations."""
        return self.render_save_dir or self.output_dir / "render"

    @property
    def checkpoint_path(self) -> Path:
        """Folder of the checkpoints."""
        return self.checkpoint_config.output_dir or self.output_dir / "checkpoints"

    @property
    def nodes(self) -> int:
        """Number of machines: ``num_nodes``, else as many as the highest device id needs."""
        if self.num_nodes is not None:
            return self.num_nodes
        highest = max((max(worker.device_mapping or [0]) for _, worker in self.roles()), default=0)
        return highest // self.num_gpus_per_node + 1
