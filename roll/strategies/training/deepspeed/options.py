"""Options of `deepspeed_train` and `deepspeed_infer`: DeepSpeed's own JSON configuration as a ``strategy_config``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from roll.common.spelling import nearest
from roll.config.base import ConfigModel
from roll.config.errors import ConfigError, Problem
from roll.config.validation import validation_problems

AUTO = "auto"

_ALIGNMENT = 128

OWNED: Mapping[str, str] = {
    "train_batch_size": "the keys of training_args and the number of workers decide how many samples a step has",
    "train_micro_batch_size_per_gpu": "training_args.per_device_train_batch_size or max_tokens_per_microbatch decides",
    "gradient_accumulation_steps": "training_args.gradient_accumulation_steps decides how many passes a step has",
    "gradient_clipping": "max_grad_norm decides where gradients are clipped",
    "optimizer": "training_args (learning_rate, weight_decay, adam_beta1, adam_beta2, adam_epsilon) describe the "
    "optimiser, which is AdamW",
    "scheduler": "training_args (lr_scheduler_type, warmup_steps, warmup_ratio) describe the schedule",
    "gradient_allreduce_op": "losses are shares of the loss of the whole batch, so gradients are summed over ranks",
    "zero_allow_untested_optimizer": "the optimiser is torch's AdamW, which DeepSpeed does not list",
}
"""Keys of DeepSpeed whose values follow from keys of roll; only ``auto`` is a value for them."""

UNSUPPORTED: Mapping[str, str] = {
    "amp": "use bf16 (model_args.dtype: bf16)",
    "elasticity": "the number of workers is fixed for a run",
    "autotuning": "tune outside of a run",
    "data_efficiency": "roll chooses what a step trains on",
    "curriculum_learning": "roll chooses what a step trains on",
    "tensor_parallel": "use megatron_train for tensor parallelism",
    "pipeline": "use megatron_train for pipeline parallelism",
}
"""Keys of DeepSpeed that cannot be had here, and what to do instead."""

PASSED_ON = (
    "activation_checkpointing",
    "aio",
    "checkpoint",
    "comms_logger",
    "communication_data_type",
    "compile",
    "csv_monitor",
    "data_types",
    "disable_allgather",
    "dump_state",
    "flops_profiler",
    "gradient_predivide_factor",
    "memory_breakdown",
    "prescale_gradients",
    "seq_parallel_communication_data_type",
    "sparse_gradients",
    "steps_per_print",
    "tensorboard",
    "timers",
    "torch_autocast",
    "wall_clock_breakdown",
    "wandb",
    "zero_force_ds_cpu_optimizer",
)
"""Top-level keys of DeepSpeed that go to it as they are."""


def _without_auto(value: Any) -> Any:
    """Read ``auto`` as unset."""
    return None if value == AUTO else value


def _whole(value: Any) -> Any:
    """Read ``auto`` as unset, and 5e8, which YAML and JSON take for a fraction, as the whole number that it is."""
    value = _without_auto(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


Switch = Annotated[bool | None, BeforeValidator(_without_auto)]
Count = Annotated[Annotated[int, Field(ge=0)] | None, BeforeValidator(_whole)]


class _Open(ConfigModel):
    """A section whose other keys DeepSpeed understands and checks itself."""

    model_config = ConfigDict(extra="allow")


class PrecisionOptions(_Open):
    """``bf16`` or ``fp16``."""

    enabled: Switch = Field(None, description="Whether to use it. auto: follows `model_args.dtype`.")


class OffloadOptions(_Open):
    """``offload_optimizer`` or ``offload_param``."""

    device: Literal["none", "cpu"] = Field("none", description="Where it stays while it is not needed.")
    pin_memory: Switch = Field(None, description="Keep it in page-locked memory, which copies faster.")


class ZeroOptions(_Open):
    """``zero_optimization``."""

    stage: Literal[0, 1, 2, 3] = Field(
        0,
        description="What ranks share out: 0 nothing, 1 optimiser states, 2 gradients too, 3 weights too.",
    )
    offload_optimizer: OffloadOptions | None = Field(None, description="Optimiser states in CPU memory.")
    offload_param: OffloadOptions | None = Field(None, description="Weights in CPU memory; stage 3 only.")
    overlap_comm: Switch = Field(None, description="Reduce gradients while the backward pass goes on.")
    reduce_scatter: Switch = Field(None, description="Send each gradient only to the rank that needs it.")
    contiguous_gradients: Switch = Field(None, description="Copy gradients into one buffer as they appear.")
    round_robin_gradients: Switch = Field(
        None, description="Stages 1 and 2: spread copies to CPU memory over ranks. Off under bf16."
    )
    allgather_partitions: Switch = Field(None, description="Gather weights after a step with one collective call.")
    allgather_bucket_size: Count = Field(None, description="Numbers gathered at once.")
    reduce_bucket_size: Count = Field(None, description="Numbers reduced at once. auto: hidden size squared.")
    sub_group_size: Count = Field(None, description="Stage 3: numbers that the optimiser updates at once.")
    stage3_prefetch_bucket_size: Count = Field(
        None, description="Numbers gathered ahead of time. auto: 0.9 times the hidden size squared."
    )
    stage3_param_persistence_threshold: Count = Field(
        None, description="Weights smaller than this stay whole on every rank. auto: ten times the hidden size."
    )
    stage3_max_live_parameters: Count = Field(None, description="Most gathered numbers that are kept at once.")
    stage3_max_reuse_distance: Count = Field(None, description="Gathered weights needed again this soon are kept.")
    stage3_gather_16bit_weights_on_model_save: Switch = Field(
        None, description="Without effect: what roll saves is always gathered."
    )
    compute_grad_norm: Literal[True] = Field(True, description="Every step reports its gradient norm.")


class DeepSpeedOptions(ConfigModel):
    """DeepSpeed's configuration without what follows from other keys of a run.

    :meth:`from_mapping` reads one as it is written for DeepSpeed, ``auto`` values included.
    """

    zero_optimization: ZeroOptions = Field(default_factory=ZeroOptions, description="What ranks share out.")
    bf16: PrecisionOptions = Field(default_factory=PrecisionOptions, description="Arithmetic in bf16.")
    fp16: PrecisionOptions = Field(default_factory=PrecisionOptions, description="Arithmetic in fp16; not supported.")
    passed_on: dict[str, Any] = Field(default_factory=dict, description="All other keys, handed to DeepSpeed.")

    @property
    def stage(self) -> int:
        """What ranks share out, 0 to 3."""
        return self.zero_optimization.stage

    @property
    def offloads_optimizer(self) -> bool:
        """Whether optimiser states stay in CPU memory."""
        offload = self.zero_optimization.offload_optimizer
        return offload is not None and offload.device != "none"

    @property
    def offloads_parameters(self) -> bool:
        """Whether weights stay in CPU memory."""
        offload = self.zero_optimization.offload_param
        return offload is not None and offload.device != "none"

    @property
    def compiled_optimizer(self) -> bool:
        """Whether the optimiser on the CPU is DeepSpeed's own, which needs a C++ compiler."""
        return self.offloads_optimizer and self.passed_on.get("zero_force_ds_cpu_optimizer") is True

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any] | None, path: str = "strategy_config") -> DeepSpeedOptions:
        """Check a ``strategy_config``.

        Args:
            options: DeepSpeed's configuration; ``None`` for all defaults.
            path: The key path of the mapping, for errors.

        Raises:
            ConfigError: A key is unknown, cannot be had here, or has a value that another key decides.
        """
        given = {key: value for key, value in (options or {}).items() if not _is_auto(value)}
        problems = list(_problems(given))
        named = {key: given[key] for key in cls.model_fields if key in given and key != "passed_on"}
        try:
            checked = cls.model_validate({**named, "passed_on": {key: given[key] for key in PASSED_ON if key in given}})
        except ValidationError as error:
            problems += validation_problems(error, named, cls)
        else:
            problems += _contradictions(checked)
        if problems:
            raise ConfigError([replace(problem, path=f"{path}.{problem.path}") for problem in problems])
        return checked

    def config(
        self,
        *,
        mixed_precision: bool,
        max_grad_norm: float = 0.0,
        hidden_size: int | None = None,
        numel: int | None = None,
    ) -> dict[str, Any]:
        """Return the configuration that DeepSpeed is given.

        Args:
            mixed_precision: Compute in bf16.
            max_grad_norm: Where to clip gradients; 0 for nowhere.
            hidden_size: Of the model, for buckets that are ``auto``; ``None`` leaves them to DeepSpeed.
            numel: Numbers of the model: no bucket need be larger.
        """
        zero = {**_set_only(self.zero_optimization), "stage": self.stage}
        if hidden_size is not None:
            zero.setdefault("reduce_bucket_size", hidden_size**2)
            if self.stage == 3:
                zero.setdefault("stage3_prefetch_bucket_size", int(0.9 * hidden_size**2))
                zero.setdefault("stage3_param_persistence_threshold", 10 * hidden_size)
        for key in ("reduce_bucket_size", "allgather_bucket_size"):
            if numel is not None and key in zero:
                # DeepSpeed aligns its buckets.
                zero[key] = min(zero[key], -(-numel // _ALIGNMENT) * _ALIGNMENT)
        config: dict[str, Any] = {
            # Silent, and fast without a compiler, unless it is asked for otherwise.
            "steps_per_print": None,
            "zero_force_ds_cpu_optimizer": False,
            **self.passed_on,
            "zero_optimization": zero,
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": max_grad_norm,
            "zero_allow_untested_optimizer": True,
        }
        if mixed_precision:
            config["bf16"] = {**_set_only(self.bf16), "enabled": True}
            config.setdefault("data_types", {"grad_accum_dtype": "fp32"})
            # What DeepSpeed does at stage 0 clips otherwise and sums gradients in bf16; at stage 1 ranks are the same
            # copies of each other, and only the optimiser's memory is shared out.
            zero["stage"] = max(self.stage, 1)
            # With it, DeepSpeed 0.19 hands out one parameter's fp32 weights as those of another.
            zero["round_robin_gradients"] = False
        return config

    def check_precision(self, mixed_precision: bool, path: str = "strategy_config") -> None:
        """Raise where ``bf16.enabled`` says something else than the run.

        Raises:
            ConfigError: They differ.
        """
        if self.bf16.enabled is not None and self.bf16.enabled != mixed_precision:
            dtype = "bf16" if mixed_precision else "fp32"
            message = f"model_args.dtype decides it, and that is {dtype}."
            raise ConfigError([Problem(f"{path}.bf16.enabled", message, "write auto.", self.bf16.enabled)])


def _is_auto(value: Any) -> bool:
    """Return whether a value, or everything in a section but its ``type``, is left to us."""
    if isinstance(value, Mapping):
        inner = [item for key, item in value.items() if key not in ("type", "torch_adam", "adam_w_mode")]
        return bool(inner) and all(_is_auto(item) for item in inner)
    return value is None or value == AUTO


def _problems(given: Mapping[str, Any]) -> Iterator[Problem]:
    known = [*DeepSpeedOptions.model_fields, *OWNED, *UNSUPPORTED, *PASSED_ON]
    known.remove("passed_on")
    for key, value in given.items():
        if key in OWNED:
            if key == "zero_allow_untested_optimizer" and value is True:
                continue
            yield Problem(key, f"{OWNED[key]}.", f"write {key}: auto, or leave it out.", value)
        elif key in UNSUPPORTED:
            yield Problem(key, "this part of DeepSpeed cannot be used here.", f"{UNSUPPORTED[key]}.", value)
        elif key not in known:
            close = nearest(key, known)
            fix = f"did you mean {close}?" if close else "remove it."
            yield Problem(
                key, "DeepSpeed's configuration has no key of this name, or roll does not know it.", fix, value
            )
    for path, value in _walk({key: given[key] for key in PASSED_ON if key in given}):
        if value == AUTO:
            yield Problem(path, "there is no value that auto could stand for.", "write a value, or leave it out.", AUTO)


def _walk(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _walk(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _contradictions(options: DeepSpeedOptions) -> Iterator[Problem]:
    if options.fp16.enabled:
        message = "fp16 needs a loss scale that skips steps, which is not supported."
        yield Problem("fp16.enabled", message, "write auto, and set model_args.dtype to bf16 or fp32.", True)
    if options.offloads_parameters and options.stage != 3:
        message = (
            f"weights can be kept in CPU memory only where ranks share them out, and the stage is {options.stage}."
        )
        yield Problem("zero_optimization.offload_param", message, "set zero_optimization.stage: 3, or remove it.")
    if options.offloads_optimizer and options.stage == 0:
        message = "stage 0 leaves the optimiser to each rank, and DeepSpeed then ignores this."
        yield Problem("zero_optimization.offload_optimizer", message, "set zero_optimization.stage to 1, 2 or 3.")


def _set_only(section: BaseModel) -> dict[str, Any]:
    """Return what is set in a section, including what only DeepSpeed knows."""
    return section.model_dump(exclude_none=True, exclude_unset=True)
