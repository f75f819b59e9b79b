"""verl: ``trainer`` and what is around the run: schedule, devices, folders, tracking."""

from __future__ import annotations

from typing import Any, Final

from roll.config.dialects.counting import steps_of
from roll.config.dialects.placement import Placement
from roll.config.dialects.rows import (
    TRACKERS,
    Convert,
    Impossible,
    Look,
    Row,
    Sets,
    Unused,
    folder_of,
    impossible,
    no_effect,
    off_below_one,
    plain,
    whole,
)
from roll.config.dialects.verl.sections import has_critic, has_reference, has_reward_model, trains_with_megatron
from roll.config.errors import FixableError

_LOCAL: Final = "checkpoints are local, and `checkpoint_config.keep` of them stay"
_PROFILE: Final = "`enable_ray_timeline` shows what every process did when"
_RAY: Final = "each program makes what it needs of Ray"


def _devices(value: Any, look: Look) -> Any:
    if value == "":
        return Unused("no number is named")
    nodes = look("trainer.nnodes") or 1
    placement = Placement(whole(nodes, f"trainer.nnodes = {nodes!r}"), whole(value, "the number"))
    roles = ["actor_train", "actor_infer"]
    roles += ["reference"] if has_reference(look) else []
    roles += ["critic"] if has_critic(look) else []
    roles += ["reward"] if has_reward_model(look) else []
    sets = placement.together(*roles)
    if "reference" in roles and placement.devices > 1:
        name = "megatron_infer" if trains_with_megatron(look) else "fsdp_infer"
        return Sets(sets.values, {**sets.fills, "reference.strategy_args.strategy_name": name}, sets.note)
    return sets


def _trackers(value: Any, look: Look) -> Any:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return value
    return [TRACKERS.get(name, name) for name in names]


def _resume(value: Any, look: Look) -> Any:
    if value == "disable":
        return False
    if value == "resume_path":
        if not look("trainer.resume_from_path"):
            raise FixableError("no path is given.", "set trainer.resume_from_path.")
        return look("trainer.resume_from_path")
    # Either way a run takes the newest checkpoint, and starts anew where there is none.
    return True if value == "auto" else value


def _resume_path(value: Any, look: Look) -> Any:
    return Unused(
        "" if look("trainer.resume_mode") == "resume_path" or not value else "trainer.resume_mode is not resume_path"
    )


def _experiment(value: Any, look: Look) -> Any:
    return Sets({"exp_name": value}, _project(look("trainer.project_name"), look).fills)


def _project(value: Any, look: Look) -> Sets:
    return Sets(fills={"output_dir": folder_of(None, value, look("trainer.experiment_name"))})


def _folder(value: Any, look: Look) -> Any:
    return Unused("no folder is named") if value == "" else value


def _epochs(value: Any, look: Look) -> Any:
    if look.demonstrates:
        return Sets({"actor_train.training_args.num_train_epochs": value})
    if look("trainer.total_training_steps") is not None:
        return Unused("trainer.total_training_steps says how long the run is")
    files, batch = look("data.train_files"), look("data.train_batch_size")
    return steps_of(value, files, batch, "trainer.total_training_steps")


def _every(key: str, sets: str, passes: str) -> Convert:
    """Return what reads steps between checkpoints or evaluations, which may be those of a pass over the rows."""

    def convert(value: Any, look: Look) -> Any:
        if value == "after_each_epoch":
            if look.kind_has(passes):
                return Sets({passes: 1})
            return steps_of(1, look("data.train_files"), look("data.train_batch_size"), key, sets)
        return off_below_one(value, look)

    return convert


def _nodes(value: Any, look: Look) -> Any:
    return Unused("no number is named") if value == "" else value


def _only_measures(value: Any, look: Look) -> Any:
    return Unused() if value is False else Impossible("a training run trains", "start the pipeline evaluation")


_SAVED: Final = _every("trainer.save_freq", "save_steps", "save_epochs")
_MEASURED: Final = _every("trainer.test_freq", "eval_steps", "eval_epochs")

TRAINER_ROWS: Final = (
    *plain(
        "trainer",
        "",
        total_training_steps="max_steps",
        critic_warmup="critic_warmup",
        max_actor_ckpt_to_keep="checkpoint_config.keep",
        max_ckpt_to_keep="checkpoint_config.keep",
        ray_wait_register_center_timeout="rpc_timeout",
    ),
    Row("trainer.nnodes", "num_nodes", "", _nodes),
    Row("trainer.n_gpus_per_node", "num_gpus_per_node", "also `device_mapping` of the roles that set none", _devices),
    Row("trainer.default_local_dir", "checkpoint_config.output_dir", "", _folder),
    Row("trainer.save_freq", "save_steps", "-1 saves at the end only", _SAVED),
    Row("trainer.test_freq", "eval_steps", "-1 is never", _MEASURED),
    Row("trainer.logger", "track_with", "`console` is `stdout`", _trackers),
    Row("trainer.resume_mode", "resume_from_checkpoint", "`disable` or `resume_path`", _resume),
    Row("trainer.resume_from_path", "resume_from_checkpoint", "where `resume_mode` is `resume_path`", _resume_path),
    Row("trainer.experiment_name", "exp_name", "also part of `output_dir`", _experiment),
    Row("trainer.project_name", "output_dir", "part of it, where nothing else is said", _project),
    *no_effect(
        "they are keys of Trinity-RFT's for verl's trainer, which Trinity-RFT sets itself",
        *("trainer.group_name", "trainer.training_rollout_mode", "trainer.enable_exp_buffer", "trainer.sync_freq"),
        *("trainer.val_generations_to_log_to_wandb", "enable_preview"),
    ),
    Row("trainer.val_only", note="false only", convert=_only_measures),
    Row(
        "trainer.total_epochs",
        note="steps, where the files are here to be counted; SFT: `num_train_epochs`",
        convert=_epochs,
    ),
    *no_effect(
        "every evaluation and every step writes its episodes",
        "trainer.log_val_generations",
        "trainer.validation_data_dir",
        "trainer.rollout_data_dir",
    ),
    Row("trainer.val_before_train", "eval_at_start"),
    *no_effect(
        _LOCAL,
        "trainer.default_hdfs_dir",
        "trainer.remove_previous_ckpt_in_save",
        "trainer.del_local_ckpt_after_load",
        "trainer.max_critic_ckpt_to_keep",
        "trainer.esi_redundant_time",
    ),
    *no_effect("rows are spread over ranks by their length", "trainer.balance_batch"),
    *no_effect("the devices are those that PyTorch finds", "trainer.device"),
    *no_effect("there is one implementation of every worker", "trainer.use_legacy_worker_impl"),
    *no_effect("there is one implementation of every worker", "trainer.runtime_env"),
    *no_effect(
        _PROFILE,
        "trainer.profile_steps",
        "trainer.npu_profile",
        "trainer.worker_nsight_options",
        "trainer.controller_nsight_options",
        "global_profiler",
        "actor_rollout_ref.profiler",
        "actor_rollout_ref.actor.profiler",
        "actor_rollout_ref.actor.profile",
    ),
    *no_effect(_RAY, "ray_init", "ray_kwargs", "transfer_queue"),
    *impossible("trainer and engines have the devices of their roles", "trainer.rollout_wg_kwargs"),
    *no_effect("the trainer is chosen by the keys of `actor_rollout_ref.actor`", "model_engine"),
)
"""The keys of the run."""
