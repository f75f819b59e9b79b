"""Trinity-RFT: ``algorithm`` with its ``algorithm_type``, ``model``, ``buffer``, ``trainer`` and the other sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.engines import engine_at, size_row
from roll.config.dialects.rows import (
    GENERATION_STRATEGIES,
    SCHEDULES,
    TRAIN_STRATEGIES,
    Guide,
    Look,
    Row,
    Sets,
    Unused,
    choices,
    dropped_if,
    folder_of,
    kl_kind,
    no_effect,
    plain,
    share,
    whole,
)
from roll.config.errors import FixableError

_ALGO = "algorithm"
_TRAIN = "actor_train.training_args"
_SAMPLING = "actor_infer.generating_args"
_TASKS = "buffer.explorer_input.taskset"

_ESTIMATORS = {"ppo": "gae", "reinforceplusplus": "reinforce_plus_plus", "step_wise_grpo": "step_wise_grpo"}

_DEVICES = "devices belong to the role, `device_mapping`"
_engine = engine_at("explorer.rollout_model.engine_type")
_STORE = "trajectories are kept in memory and written as parquet"
_GRADING = "grading is configured in `rewards`, environments in `custom_envs`"
_RUNNERS = "episodes are scheduled by `max_running_requests` and the env managers"


def _folder(value: Any, look: Look) -> Any:
    return folder_of(value, look("project"), look("name")) if isinstance(value, str) else value


def _name(value: Any, look: Look) -> Any:
    return Sets({"exp_name": value}, _project(look("project"), look).fills)


def _project(value: Any, look: Look) -> Sets:
    if look("checkpoint_root_dir") is not None:
        return Sets()
    return Sets(fills={"output_dir": folder_of(None, value, look("name"))})


def _kl_loss(value: Any, look: Look) -> Any:
    if value == "none":
        return Sets({"use_kl_loss": False})
    corrected = {"use_bias_correction_kl": True} if value == "corrected_k3" else {}
    kind = "low_var_kl" if corrected else kl_kind(value)
    return Sets({"use_kl_loss": True, "kl_penalty": kind, **corrected}, {"kl_loss_coef": 0.001})


def _kl_loss_args(value: Any, look: Look) -> Any:
    if not isinstance(value, Mapping) or set(value) - {"kl_coef"}:
        raise FixableError("only kl_coef has a meaning for the loss.", "write {kl_coef: 0.001}.")
    used = look(f"{_ALGO}.kl_loss_fn") not in (None, "none") or look.kl_loss
    return Sets({"kl_loss_coef": value["kl_coef"]} if value else {}) if used else Unused("kl_loss_fn is not set")


def _kl_reward(value: Any, look: Look) -> Any:
    if value == "none":
        return Sets({"init_kl_coef": 0.0})
    return Sets({"kl_penalty": kl_kind(value), "add_token_level_kl": True}, {"init_kl_coef": 0.001})


def _kl_reward_args(value: Any, look: Look) -> Any:
    names = {"kl_coef": "init_kl_coef", "target_kl": "target_kl", "horizon": "kl_horizon"}
    if not isinstance(value, Mapping) or set(value) - {*names, "adaptive"}:
        raise FixableError("a key of it has no meaning here.", "use kl_coef, adaptive, target_kl, horizon.")
    if look(f"{_ALGO}.kl_penalty_fn") in (None, "none"):
        return Unused("kl_penalty_fn is not set")
    if value.get("adaptive") and value.get("target_kl") is None:
        raise FixableError("an adaptive controller needs a target.", "add target_kl: 0.1.")
    used = ("kl_coef", "target_kl", "horizon") if value.get("adaptive") else ("kl_coef",)
    return Sets({names[key]: value[key] for key in used if value.get(key) is not None})


def _entropy(value: Any, look: Look) -> Any:
    if value == "none":
        return Sets({"entropy_loss_coef": 0.0})
    if value not in ("default", "mix"):
        raise FixableError("there is no such entropy loss.", "use default or none.")
    return Unused()


def _entropy_args(value: Any, look: Look) -> Any:
    if not isinstance(value, Mapping) or set(value) - {"entropy_coef"}:
        raise FixableError("only entropy_coef has a meaning here.", "write {entropy_coef: 0.001}.")
    return Sets({"entropy_loss_coef": value["entropy_coef"]} if value else {})


def _advantage_args(value: Any, look: Look) -> Any:
    names = {"gamma": "gamma", "lam": "lambd"}
    if not isinstance(value, Mapping):
        raise FixableError("must be a section.", "write {gamma: 1.0, lam: 0.95}.")
    options = {f"advantage_options.{key}": item for key, item in value.items() if key not in names}
    return Sets({names[key]: item for key, item in value.items() if key in names} | options)


def _loss_args(value: Any, look: Look) -> Any:
    names = {"clip_range": "pg_clip", "clip_range_low": "pg_clip_low", "clip_range_high": "pg_clip_high"}
    if not isinstance(value, Mapping):
        raise FixableError("must be a section.", "write {clip_range: 0.2}.")
    options = {f"policy_loss_options.{key}": item for key, item in value.items() if key not in names}
    return Sets({names[key]: item for key, item in value.items() if key in names} | options)


def _rollout_batch(value: Any, look: Look) -> int:
    prompts = whole(value, "the batch size")
    return prompts * look.responses(f"{_ALGO}.repeat_times") if look.agentic else prompts


def _mini_batches(value: Any, look: Look) -> int:
    samples = look.prompts("buffer.batch_size", f"{_ALGO}.repeat_times") * look.responses(f"{_ALGO}.repeat_times")
    return share(samples, value, "experiences")


def _budget(value: Any, look: Look) -> Any:
    return value if look("trainer.use_dynamic_bsz") is True else Unused("trainer.use_dynamic_bsz is not true")


def _dynamic(value: Any, look: Look) -> Unused:
    if value is True and look("trainer.max_token_len_per_gpu") is None:
        raise FixableError("batches by length need a token budget.", "set trainer.max_token_len_per_gpu.")
    return Unused()


def _critic_model(value: Any, look: Look) -> Any:
    critic = look(f"{_ALGO}.advantage_fn") == "ppo" or (
        look(f"{_ALGO}.advantage_fn") is None and look(f"{_ALGO}.algorithm_type") == "ppo"
    )
    return value if critic else Unused("the algorithm has no critic")


_ALGORITHM = (
    Row(f"{_ALGO}.algorithm_type", "algorithm_type", "fills what is unset, and never changes what is set"),
    Row(f"{_ALGO}.repeat_times", "num_return_sequences_in_group", "agentic: `train_env_manager.group_size`"),
    Row(
        f"{_ALGO}.advantage_fn",
        "adv_estimator",
        "`ppo` is `gae`, with a critic; `reinforceplusplus` is `reinforce_plus_plus`",
        choices(_ESTIMATORS),
    ),
    Row(
        f"{_ALGO}.advantage_fn_args",
        ("gamma", "lambd", "advantage_options"),
        "`gamma`, `lam`; others are options of the estimator",
        _advantage_args,
    ),
    Row(f"{_ALGO}.policy_loss_fn", "policy_loss"),
    Row(
        f"{_ALGO}.policy_loss_fn_args",
        ("pg_clip", "pg_clip_low", "pg_clip_high", "policy_loss_options"),
        "`clip_range`, `clip_range_low`, `clip_range_high`; others are options of the loss",
        _loss_args,
    ),
    Row(
        f"{_ALGO}.kl_loss_fn",
        ("use_kl_loss", "kl_penalty", "use_bias_correction_kl"),
        "with a reference, and with weight 0.001 unless it is set; `none` is off",
        _kl_loss,
    ),
    Row(f"{_ALGO}.kl_loss_fn_args", "kl_loss_coef", "`kl_coef`", _kl_loss_args),
    Row(
        f"{_ALGO}.kl_penalty_fn",
        ("kl_penalty", "add_token_level_kl"),
        "with a reference, and with `init_kl_coef: 0.001` unless it is set; `none` is off",
        _kl_reward,
    ),
    Row(
        f"{_ALGO}.kl_penalty_fn_args",
        ("init_kl_coef", "target_kl", "kl_horizon"),
        "`kl_coef`; with `adaptive: true` also `target_kl` and `horizon`",
        _kl_reward_args,
    ),
    Row(f"{_ALGO}.entropy_loss_fn", "entropy_loss_coef", "`none` is 0", _entropy),
    Row(f"{_ALGO}.entropy_loss_fn_args", "entropy_loss_coef", "`entropy_coef`", _entropy_args),
    Row(f"{_ALGO}.loss_agg_mode", "loss_agg_mode"),
    Row(
        f"{_ALGO}.sample_strategy",
        note="To let sampling run ahead, set async_generation_ratio.",
        only=("default", "warmup"),
    ),
    *plain(
        f"{_ALGO}.optimizer",
        _TRAIN,
        lr="learning_rate",
        weight_decay="weight_decay",
        lr_warmup_steps="warmup_steps",
        lr_warmup_steps_ratio="warmup_ratio",
    ),
    Row(
        f"{_ALGO}.optimizer.warmup_style",
        f"{_TRAIN}.lr_scheduler_type",
        "`constant` is `constant_with_warmup`",
        choices(SCHEDULES),
    ),
)

_MODEL = (
    Row("model.model_path", "pretrain"),
    Row(
        "model.critic_model_path",
        "critic.model_args.model_name_or_path",
        "where the algorithm has a critic",
        _critic_model,
    ),
    Row("model.custom_chat_template", "actor_train.data_args.template", "`None` is none", dropped_if(("None",))),
    Row("model.chat_template_path", "actor_train.data_args.template", "`None` is none", dropped_if(("None",))),
    Row("model.max_model_len", "sequence_length"),
    Row("model.max_prompt_tokens", "prompt_length"),
    Row("model.max_response_tokens", ("response_length", f"{_SAMPLING}.max_new_tokens")),
    Row("model.repetition_penalty", f"{_SAMPLING}.repetition_penalty"),
    Row("model.min_response_tokens", note="A response has at least one token.", only=(0, 1)),
    *no_effect("long prompts are treated by `actor_train.data_args.truncation`", "model.enable_prompt_truncation"),
    Row("model.lora_configs", note="Use actor_train.model_args.lora_rank.", only=(None,)),
    *(
        Row(f"model.{name}", note="Change the model's own config.json.", only=(None,))
        for name in ("rope_scaling", "rope_theta")
    ),
    Row("model.tinker.enable", note="Tinker is a service that is not supported.", only=(False,)),
    *no_effect(
        "Tinker is a service that is not supported",
        *(f"model.tinker.{name}" for name in ("rank", "seed", "train_mlp", "train_attn", "train_unembed")),
    ),
)

_BUFFER = (
    Row("buffer.batch_size", "rollout_batch_size", "agentic: times `repeat_times`", _rollout_batch),
    Row(
        "buffer.train_batch_size",
        "mini_batches",
        "`batch_size` · `repeat_times` divided by it",
        _mini_batches,
    ),
    Row("buffer.total_steps", "max_steps"),
    *no_effect("the run lasts `max_steps`, or `trainer.total_steps`", "buffer.total_epochs"),
    Row(f"{_TASKS}.path", "actor_train.data_args.file_name", "data files, not a folder"),
    Row(f"{_TASKS}.format.prompt_key", "actor_train.data_args.prompt"),
    Row(f"{_TASKS}.format.messages_key", "actor_train.data_args.messages"),
    Row(f"{_TASKS}.format.response_key", "actor_train.data_args.ground_truth"),
    Row(f"{_TASKS}.format.system_prompt", "actor_train.data_args.system_prompt"),
    Row(f"{_TASKS}.rollout_args.temperature", f"{_SAMPLING}.temperature"),
    Row(f"{_TASKS}.storage_type", note="Prompts come from files.", only=("file",)),
    *no_effect("files are read as they are", *(f"{_TASKS}.{name}" for name in ("name", "subset_name", "split"))),
    Row("buffer.explorer_input.eval_tasksets", note="Write validation: with data_args.", only=(None, [])),
    *no_effect(
        _GRADING,
        *(f"{_TASKS}.{name}" for name in ("default_workflow_type", "default_reward_fn_type", "workflow_args")),
        *(
            f"buffer.explorer_input.{name}"
            for name in ("default_workflow_type", "default_eval_workflow_type", "default_reward_fn_type")
        ),
    ),
    *no_effect(_STORE, "buffer.trainer_input.experience_buffer"),
    Row(
        "buffer.trainer_input.auxiliary_buffers",
        note="Samples of experts are not mixed in by this pipeline.",
        only=(None, {}),
    ),
)

_TRAINER = (
    *plain(
        "trainer",
        "",
        total_steps="max_steps",
        save_interval="save_steps",
        grad_clip="max_grad_norm",
    ),
    Row(
        "trainer.trainer_strategy",
        "actor_train.strategy_args.strategy_name",
        "`fsdp`, `fsdp2`: `fsdp_train`; `megatron`: `megatron_train`",
        choices(TRAIN_STRATEGIES),
    ),
    Row("trainer.use_dynamic_bsz", f"{_TRAIN}.max_tokens_per_microbatch", "needs `max_token_len_per_gpu`", _dynamic),
    Row(
        "trainer.max_token_len_per_gpu",
        f"{_TRAIN}.max_tokens_per_microbatch",
        "where `use_dynamic_bsz` is true",
        _budget,
    ),
    *no_effect("roles have fixed names", "trainer.name"),
    *no_effect("the trainer is the strategy of `actor_train`", "trainer.trainer_type"),
    *no_effect(
        "one process writes a checkpoint, in the Hugging Face format too",
        "trainer.save_strategy",
        "trainer.save_hf_checkpoint",
    ),
    *no_effect(
        "sharding and memory belong to the strategy, `strategy_args.strategy_config`",
        "trainer.ulysses_sequence_parallel_size",
    ),
    Row("trainer.trainer_config", note="Write actor_rollout_ref: and critic: as sections of their own.", only=(None,)),
)

_EXPLORER = (
    Row("explorer.eval_interval", "eval_steps"),
    Row(
        "explorer.rollout_model.engine_type",
        "actor_infer.strategy_args.strategy_name",
        "`vllm_async` is `vllm`",
        choices(GENERATION_STRATEGIES),
    ),
    size_row("explorer.rollout_model.tensor_parallel_size", _engine),
    *no_effect(_DEVICES, "explorer.rollout_model.engine_num"),
    *no_effect("every trajectory is kept whole", "explorer.rollout_model.enable_history"),
    *no_effect("evaluations follow `eval_steps`", "explorer.eval_on_startup"),
    *no_effect(
        _RUNNERS,
        *(
            f"explorer.{name}"
            for name in (
                "name",
                "runner_per_model",
                "max_timeout",
                "max_retry_times",
                "env_vars",
                "runner_state_report_interval",
                "dynamic_timeout",
            )
        ),
    ),
    Row("explorer.over_rollout.ratio", note="Use is_use_additional_prompts.", only=(0, 0.0)),
    *no_effect(_RUNNERS, "explorer.over_rollout.wait_after_min"),
    Row("explorer.auxiliary_models", note="A judge is configured in rewards.", only=(None, [])),
    Row("synchronizer.sync_interval", "actor_infer.model_update_frequency"),
    Row("synchronizer.sync_offset", note="To let sampling run ahead, set async_generation_ratio.", only=(0,)),
    *no_effect(
        "weights are handed over by the strategy",
        *(f"synchronizer.{name}" for name in ("sync_method", "sync_timeout", "sync_style")),
    ),
)

_RUN = (
    Row("name", "exp_name", "also part of `output_dir`", _name),
    Row("checkpoint_root_dir", "output_dir", "with `project` and `name` below it", _folder),
    Row("project", "output_dir", "part of it", _project),
    Row("continue_from_checkpoint", "resume_from_checkpoint"),
    Row("mode", "mode"),
    *no_effect("names of projects go to `tracker_kwargs`", "ray_namespace"),
    Row("cluster.node_num", "num_nodes"),
    Row("cluster.gpu_per_node", "num_gpus_per_node"),
    Row("monitor.monitor_type", "track_with"),
    *no_effect("trackers read their own environment variables, and `tracker_kwargs`", "monitor.monitor_args"),
    Row("monitor.enable_ray_timeline", note="Use a profiler.", only=(False,)),
    Row("service", note="Data services are not started from here.", only=(None, {})),
    Row("data_processor", note="Prepare data files before the run.", only=(None, {})),
    Row(
        "stages",
        note="Stages are written in native keys: a list of sections, each with a name and a pipeline.",
        only=(None, []),
    ),
    *no_effect("workers write to the log of the run", "log"),
)

TRINITY: Final = Guide("Trinity-RFT", (*_ALGORITHM, *_MODEL, *_BUFFER, *_TRAINER, *_EXPLORER, *_RUN))
"""The Trinity-RFT configuration guide."""
