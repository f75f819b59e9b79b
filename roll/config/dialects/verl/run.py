"""verl: the run around the algorithm: model, sampler, data, rewards and schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.engines import dtype_row, engine_at, option_rows, size_row
from roll.config.dialects.placement import Placement
from roll.config.dialects.rows import (
    GENERATION_STRATEGIES,
    TRACKERS,
    Look,
    Row,
    Sets,
    Unused,
    choices,
    dropped_if,
    folder_of,
    negated,
    no_effect,
    off_below_one,
    plain,
    whole,
)
from roll.config.errors import FixableError

_ACTOR = "actor_rollout_ref.actor"
_MODEL = "actor_rollout_ref.model"
_REF = "actor_rollout_ref.ref"
_ROLLOUT = "actor_rollout_ref.rollout"
_DATA = "actor_train.data_args"
_SAMPLING = "actor_infer.generating_args"

_SHARDING = "sharding and memory belong to the strategy, `strategy_args.strategy_config`"
_DEVICES = "devices belong to the role, `device_mapping`"
_engine = engine_at(f"{_ROLLOUT}.name")


def _reference_used(value: Any, look: Look) -> Any:
    asked = look(f"{_ACTOR}.use_kl_loss") is True or look("algorithm.use_kl_in_reward") is True
    return value if asked or look.kl_loss or look.kl_reward else Unused("no term uses the reference")


def _devices(value: Any, look: Look) -> Sets:
    nodes = look("trainer.nnodes", 1)
    placement = Placement(whole(nodes, f"trainer.nnodes = {nodes!r}"), whole(value, "the number"))
    roles = ["actor_train", "actor_infer"]
    if look("algorithm.adv_estimator", look.native("adv_estimator")) == "gae":
        roles.append("critic")
    return placement.together(*roles)


def _rollout_batch(value: Any, look: Look) -> int:
    prompts = whole(value, "the batch size")
    return prompts * look.responses(f"{_ROLLOUT}.n") if look.agentic else prompts


def _train_files(value: Any, look: Look) -> Sets:
    # verl's files: chat messages under prompt_key, the answer inside reward_model, the source in data_source.
    return Sets({f"{_DATA}.file_name": value}, _columns(_DATA, look))


def _val_files(value: Any, look: Look) -> Sets:
    section = "validation.data_args"
    return Sets({f"{section}.file_name": value}, _columns(section, look))


def _columns(section: str, look: Look) -> dict[str, str]:
    columns = {"ground_truth": "reward_model.ground_truth"}
    if look.native(f"{section}.prompt") is None:
        columns["messages"] = look("data.prompt_key", "prompt")
    if not _graded_alike(look):
        columns["tag"] = "data_source"
    return {f"{section}.{key}": column for key, column in columns.items()}


def _graded_alike(look: Look) -> bool:
    """Tell whether one function grades every row, whatever its source."""
    function = look("custom_reward_function")
    return isinstance(function, Mapping) and function.get("path") is not None and look.native("rewards") is None


def _own_class(value: Any, look: Look) -> Any:
    none = isinstance(value, Mapping) and value.get("path") is None
    return Unused() if none else value


def _reward_function(value: Any, look: Look) -> Any:
    if not isinstance(value, Mapping):
        return value
    if value.get("path") is None:
        return Unused()
    written = {"kwargs" if key == "reward_kwargs" else key: item for key, item in value.items() if item is not None}
    # It grades every domain without verifiers; where none is configured, one for all rows.
    domain: dict[str, Any] = {"rewards.all": {}} if _graded_alike(look) and not look.agentic else {}
    return Sets({"custom_reward_function": {"name": "compute_score", **written}}, domain)


def _reward_model(value: Any, look: Look) -> Any:
    if look("reward_model.enable") is True:
        raise FixableError("a reward model is configured as a role here.", "write reward: and reward_pretrain:.")
    return Unused("reward_model.enable is not true")


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


_POLICY_MODEL = (
    Row(f"{_MODEL}.path", "pretrain"),
    Row(
        f"{_MODEL}.enable_gradient_checkpointing",
        "actor_train.model_args.disable_gradient_checkpointing",
        "turned around",
        negated,
    ),
    Row(f"{_MODEL}.use_remove_padding", "actor_train.use_remove_padding"),
    Row(f"{_MODEL}.lora_rank", "actor_train.model_args.lora_rank", "0 is off", dropped_if((0,))),
    Row(f"{_MODEL}.lora_alpha", "actor_train.model_args.lora_alpha"),
    Row(
        f"{_MODEL}.target_modules",
        "actor_train.model_args.lora_target",
        "`all-linear` is the default",
        dropped_if(("all-linear",)),
    ),
    Row(f"{_MODEL}.override_config", note="Change the model's own config.json.", only=(None, {})),
    Row(f"{_MODEL}.external_lib", note="Name modules of your own in algorithm_modules.", only=(None,)),
    *no_effect("kernels are the strategy's", f"{_MODEL}.use_fused_kernels", f"{_MODEL}.fused_kernel_options"),
    *no_effect("actor and sampler always share their devices here", "actor_rollout_ref.hybrid_engine"),
)

_REFERENCE = (
    Row(
        f"{_REF}.log_prob_micro_batch_size_per_gpu",
        "reference.infer_batch_size",
        "where a divergence is used",
        _reference_used,
    ),
    Row(f"{_REF}.log_prob_micro_batch_size", note="Use log_prob_micro_batch_size_per_gpu.", only=(None,)),
    *no_effect(_SHARDING, f"{_REF}.fsdp_config", f"{_REF}.ulysses_sequence_parallel_size"),
    *no_effect(
        "batches are scored by `infer_batch_size`",
        f"{_REF}.log_prob_use_dynamic_bsz",
        f"{_REF}.log_prob_max_token_len_per_gpu",
        f"{_REF}.entropy_from_logits_with_chunking",
        f"{_REF}.entropy_checkpointing",
    ),
)

_SAMPLER = (
    Row(
        f"{_ROLLOUT}.name",
        "actor_infer.strategy_args.strategy_name",
        "`hf` is `hf_infer`",
        choices(GENERATION_STRATEGIES),
    ),
    *plain(_ROLLOUT, _SAMPLING, temperature="temperature", top_k="top_k", top_p="top_p"),
    Row(f"{_ROLLOUT}.n", "num_return_sequences_in_group", "agentic: `train_env_manager.group_size`"),
    *plain(_ROLLOUT, "", prompt_length="prompt_length", response_length="response_length"),
    Row(f"{_ROLLOUT}.do_sample", note="For greedy sampling, set temperature: 0.", only=(True,)),
    Row(f"{_ROLLOUT}.ignore_eos", note="A response ends at its stop token.", only=(False,)),
    dtype_row(f"{_ROLLOUT}.dtype", _engine),
    size_row(f"{_ROLLOUT}.tensor_model_parallel_size", _engine),
    *option_rows(_ROLLOUT, _engine, "gpu_memory_utilization", "enforce_eager", "max_num_batched_tokens"),
    Row(f"{_ROLLOUT}.max_num_seqs", "max_running_requests"),
    *no_effect("the engine has its weights from the trainer", f"{_ROLLOUT}.load_format"),
    Row(f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu", "actor_train.infer_batch_size"),
    Row(f"{_ROLLOUT}.log_prob_micro_batch_size", note="Use log_prob_micro_batch_size_per_gpu.", only=(None,)),
    *no_effect(
        "batches are scored by `infer_batch_size`",
        f"{_ROLLOUT}.log_prob_use_dynamic_bsz",
        f"{_ROLLOUT}.log_prob_max_token_len_per_gpu",
    ),
    *no_effect("the engine decides when its cache is dropped", f"{_ROLLOUT}.free_cache_engine"),
    *no_effect("options of an engine go to `actor_infer.strategy_args.strategy_config`", f"{_ROLLOUT}.engine_kwargs"),
)

_PROMPTS = (
    Row("data.train_files", f"{_DATA}.file_name", "with verl's columns, unless others are set", _train_files),
    Row("data.val_files", "validation.data_args.file_name", "with verl's columns", _val_files),
    Row("data.prompt_key", f"{_DATA}.messages", "the column holds chat messages"),
    Row("data.max_prompt_length", "prompt_length"),
    Row("data.max_response_length", ("response_length", f"{_SAMPLING}.max_new_tokens")),
    Row("data.train_batch_size", "rollout_batch_size", "agentic: times the responses per prompt", _rollout_batch),
    Row("data.val_batch_size", "val_batch_size"),
    *plain(
        "data", _DATA, shuffle="shuffle", filter_overlong_prompts="filter_overlong_prompts", truncation="truncation"
    ),
    Row("data.custom_cls", f"{_DATA}.custom_cls", "`path: null` is none", _own_class),
    *no_effect("every row keeps all its columns", "data.return_raw_input_ids", "data.return_raw_chat"),
    *no_effect("the tokenizer is the model's", "data.tokenizer"),
    *no_effect("prompts are text", "data.image_key"),
)

_REWARDS = (
    *plain(
        "reward_model.overlong_buffer",
        "overlong_buffer",
        enable="enable",
        len="len",
        penalty_factor="penalty_factor",
    ),
    *no_effect("every reward term is a metric", "reward_model.overlong_buffer.log"),
    Row("reward_model.enable", note="Reward models are a role: write reward: and reward_pretrain:.", only=(False,)),
    *(
        Row(f"reward_model.{name}", note="only with `enable: true`, which is refused", convert=_reward_model)
        for name in ("model", "micro_batch_size", "micro_batch_size_per_gpu", "max_length")
    ),
    *no_effect("grading is always parallel, by the verifiers in `rewards`", "reward_model.reward_manager"),
    Row(
        "custom_reward_function",
        "custom_reward_function",
        "`path: null` is none; unset, `name` is `compute_score` and `rewards` has one domain, `all`; "
        "`reward_kwargs` is `kwargs`",
        _reward_function,
    ),
)

_TRAINER = (
    *plain(
        "trainer",
        "",
        total_training_steps="max_steps",
        nnodes="num_nodes",
        critic_warmup="critic_warmup",
        default_local_dir="checkpoint_config.output_dir",
        max_actor_ckpt_to_keep="checkpoint_config.keep",
        ray_wait_register_center_timeout="rpc_timeout",
    ),
    Row("trainer.n_gpus_per_node", "num_gpus_per_node", "also `device_mapping` of the roles that set none", _devices),
    Row("trainer.save_freq", "save_steps", "-1 saves at the end only", off_below_one),
    Row("trainer.test_freq", "eval_steps", "-1 is never", off_below_one),
    Row("trainer.logger", "track_with", "`console` is `stdout`", _trackers),
    Row("trainer.resume_mode", "resume_from_checkpoint", "`disable` or `resume_path`", _resume),
    Row("trainer.resume_from_path", "resume_from_checkpoint", "where `resume_mode` is `resume_path`", _resume_path),
    *no_effect("the run lasts `max_steps`, or `trainer.total_training_steps`", "trainer.total_epochs"),
    Row("trainer.experiment_name", "exp_name", "also part of `output_dir`", _experiment),
    Row("trainer.project_name", "output_dir", "part of it, where nothing else is said", _project),
    *no_effect("every evaluation writes its episodes", "trainer.log_val_generations"),
    *no_effect("evaluations follow `eval_steps`", "trainer.val_before_train"),
    *no_effect("checkpoints are local, and `checkpoint_config.keep` of them stay", "trainer.default_hdfs_dir"),
    *no_effect(
        "checkpoints are local, and `checkpoint_config.keep` of them stay",
        "trainer.remove_previous_ckpt_in_save",
        "trainer.del_local_ckpt_after_load",
        "trainer.max_critic_ckpt_to_keep",
    ),
    *no_effect(_DEVICES, "trainer.balance_batch"),
)

RUN_ROWS: Final = (*_POLICY_MODEL, *_REFERENCE, *_SAMPLER, *_PROMPTS, *_REWARDS, *_TRAINER)
"""The keys that are not about the algorithm."""
