"""ROLL's keys of a whole run: where its models come from, what it writes, and rows of demonstrations."""

from __future__ import annotations

from typing import Any, Final

from roll.config.dialects.rows import Look, Row, Sets, Unused, impossible, no_effect

_SHARED: Final = "where a model waits while another one has its devices is decided by the run"
_STORAGE: Final = "a folder is the one storage of checkpoints"


def _storage(value: Any, look: Look) -> Any:
    if value == "file_system":
        return value
    note = "checkpoints are folders; copy them, or mount the storage at checkpoint_config.output_dir"
    return Sets({"checkpoint_config.type": "file_system"}, note=note)


def _is_template(value: Any, look: Look) -> Any:
    paths = ("actor_train.data_args.template", "actor_infer.data_args.template")
    asked = [look.native(path) for path in paths]
    # A role's own template goes before the one that is for all.
    return Unused("actor_train.data_args.template goes before it") if asked[0] is not None else value


def _rows_per_step(value: Any, look: Look) -> Any:
    return Unused(
        "the rows of a step are per_device_train_batch_size × gradient_accumulation_steps × data-parallel ranks"
    )


def _loss_type(value: Any, look: Look) -> Any:
    return "ipo" if value is True else Unused("loss_type is sigmoid without it")


def _last_of_path(value: Any, look: Look) -> Any:
    """Take the name of a group of runs for the experiment's, where that has none."""
    return Unused("exp_name names the run") if look.native("exp_name") is not None else value


def _stands_elsewhere(value: Any, look: Look) -> Any:
    return Unused()


RUN: Final[tuple[Row, ...]] = (
    Row("checkpoint_config.type", "checkpoint_config.type", "a folder", _storage),
    *impossible(
        _STORAGE,
        "checkpoint_config.oss_bucket",
        "checkpoint_config.oss_endpoint",
        "checkpoint_config.mos_config",
        "checkpoint_config.user_id",
        "checkpoint_config.upload_path",
        instead="checkpoint_config.output_dir",
    ),
    *no_effect(
        "checkpoints are written whole before the next step",
        "checkpoint_config.async_upload",
        "checkpoint_config.async_save",
        "checkpoint_config.keep_local_file",
    ),
    Row("max_ckpt_to_keep", "checkpoint_config.keep"),
    Row("checkpoint_config.max_ckpt_to_keep", "checkpoint_config.keep"),
    Row("rollout_dump_dir", (), "trajectories are written to output_dir every trajectory_dump_steps"),
    *no_effect(
        "ids of models are those of the hub that the environment names (USE_MODELSCOPE, HF_ENDPOINT)",
        "model_download_type",
    ),
    Row("model_name", "exp_name", "where that is not set", _last_of_path),
    Row("global_template", "actor_train.data_args.template", "where that is not set", _is_template),
    *no_effect(
        _SHARED,
        "offload_nccl",
        "is_offload_states",
        "is_offload_optimizer_states_in_train_step",
        "is_offload_optimizer_states",
    ),
    *no_effect(
        "roll profile measures a step",
        "profiler_timeline",
        "profiler_memory",
        "profiler_output_dir",
        "profile_strategy",
        "profiler_config",
    ),
    *no_effect("each program makes what it needs of Ray", "ray_kwargs", "ray_init_kwargs"),
    *impossible(
        "what a rollout was is not put in the place of another one", "rollout_mock", instead="roll replay shows one"
    ),
    *(
        Row(name, f"actor_train.model_args.{name}", "stands where the file interpolates it", _stands_elsewhere)
        for name in ("lora_rank", "lora_alpha", "lora_target")
    ),
    *impossible(
        "rewards of videos and pictures are not here",
        "reward_system_config",
        instead="the verifiers of text in docs/rewards.md",
    ),
    # Rows of demonstrations and pairs
    Row("ipo", "loss_type", "true is `ipo`", _loss_type),
    Row("train_batch_size", (), "rows of a step", _rows_per_step),
    *no_effect("held-out rows are scored in the batches of training", "eval_batch_size"),
    *impossible("held-out rows are in files of their own", "val_size", instead="validation.data_args.file_name"),
)
