"""ROLL: keys of its own classes of configuration that its guide does not print."""

from __future__ import annotations

from typing import Any, Final

from roll.config.dialects.rows import (
    Convert,
    Impossible,
    Look,
    Row,
    Sets,
    Unused,
    agreeing,
    impossible,
    no_effect,
    under,
    unless,
)

_PLAYERS: Final = ("train_env_manager", "val_env_manager")
_VALIDATION: Final = "validation.generating_args"

_OF_A_MODEL: Final = (
    *("model_args", "training_args", "data_args", "generating_args", "strategy_args", "sequence_packing_args"),
    *("name", "pg_variant", "world_size", "device_mapping", "num_gpus_per_worker", "model_update_frequency"),
    *(
        "infer_batch_size",
        "backend_timeout",
        "max_concurrency",
        "offload_nccl",
        "use_sequence_packing",
        "logits_in_fp32",
    ),
    *("use_dynamic_batching_in_train", "max_tokens_per_microbatch_in_train", "sequence_length_round_in_train"),
    *("use_dynamic_batching_in_infer", "max_tokens_per_microbatch_in_infer", "sequence_length_round_in_infer"),
    *("topr_positive_weight", "topr_negative_weight", "apply_loss_scale", "mtp_training_mode", "opd_kl_coef"),
    *("tag_included", "router_replay"),
)
"""Keys that every role of ROLL has, of which those that play environments use none."""

_OF_SAMPLING: Final = (
    *("rollout_batch_size", "max_running_requests", "val_batch_size", "prompt_length", "response_length"),
    *("generate_opt_level", "is_num_return_sequences_expand", "is_use_additional_prompts"),
    "max_additional_running_prompts",
)
"""Keys of every run of ROLL that mean something where samples are drawn."""


def _where_sampled(key: str) -> Convert:
    """Leave a native key of runs that sample, and say of others that nothing is sampled."""
    return lambda value, look: value if look.kind_has(key) else Unused("nothing is sampled")


def _sampler(value: Any, look: Look) -> Any:
    return Sets({"old_log_probs": "sampler"}) if value is True else Unused("it is off, as it is here")


def _greedy(value: Any, look: Look) -> Any:
    return Sets({f"{_VALIDATION}.temperature": 0}) if value is True else Unused("evaluations sample")


def _traces(value: Any, look: Look) -> Any:
    return (
        Sets({"tracing": "file"}, note="traces of episodes are a file among the logs")
        if value
        else Unused("no folder is named")
    )


def _asks(value: Any, look: Look) -> Any:
    kind = value.get("proxy_type", "policy") if isinstance(value, dict) else value
    return (
        Unused() if kind == "policy" else Impossible(f"no {kind} plays in training", "roll eval measures other players")
    )


def _one_range(value: Any, look: Look) -> Any:
    # Without it ROLL clips by pg_clip alone; the bounds have their native meaning where it is on.
    return Unused()


_WAITS: Final = "where episodes hang or fail is said by `timeouts`, `max_retry_times` and the alarms of the run"

OF_EVERY_RUN: Final[tuple[Row, ...]] = tuple(
    Row(key, key, "where samples are drawn", _where_sampled(key)) for key in _OF_SAMPLING
)
"""Native keys that files of ROLL set in every kind of run."""

SCHEMA: Final[tuple[Row, ...]] = (
    # The run
    *no_effect(
        "output_dir and logging_dir say where things go", "base_dir", "save_logging_board_dir", "length_profiler_dir"
    ),
    Row("otlp_output_dir", "tracing", "a file", _traces),
    *no_effect("evaluations have the lengths of training", "val_prompt_length", "val_sequence_length"),
    agreeing(
        "report_length_and_rewards", "trajectory_dump_steps", "every trajectory is written with its length and rewards"
    ),
    Row("model_update_buffer_size_mb", "weight_sync.bucket_mib"),
    *no_effect("weights travel by weight_sync.method", "transfer_backend"),
    *no_effect("a scheduler gives requests to engines that are free", "router_args"),
    *impossible("the scheduler is that of the run", "user_defined_rollout_loop_cls", instead="a pipeline of one's own"),
    # The algorithm
    Row("use_pg_clip_range", ("pg_clip_low", "pg_clip_high"), "where they are set", _one_range),
    Row("force_disable_old_logprobs_recompute", "old_log_probs", "true is `sampler`", _sampler),
    Row(
        "use_policy_loss_type",
        (),
        "only PPO",
        unless(("PPO",), "the loss is named by its variant", "pg_variant"),
        agrees="policy_loss",
    ),
    Row(
        "mask_type",
        (),
        "only loss",
        unless(("loss",), "what is masked counts in no loss", "max_len_mask"),
        agrees="max_len_mask",
    ),
    Row(
        "minibatch_data_iter_num",
        (),
        "only 1",
        unless((1,), "a mini-batch is learned from once", "ppo_epochs"),
        agrees="ppo_epochs",
    ),
    *no_effect("rows are spread over ranks by their length", "balance_length"),
    *no_effect("only with error_max_len_clip", "error_max_len_threshold"),
    *impossible(
        "rows are chosen before the run", "dataset_filter", instead="operators: {tasks: [{name: filter, args: {…}}]}"
    ),
    Row("val_greedy", f"{_VALIDATION}.temperature", "true is 0", _greedy),
    Row("val_n_sample", f"{_VALIDATION}.num_return_sequences"),
    *(agreeing(key, "pipeline", "the pipeline says it") for key in ("is_pure_opd", "use_opd")),
    agreeing(
        "pure_opd_pipeline_type", "pipeline", "the pipeline says it", lambda value, look: value in ("rlvr", "agentic")
    ),
    # Distillation
    Row("adaptive_kl_alpha", (), "only with adaptive_kl", unless((None,), "no divergence adapts", "divergence: jsd")),
    *impossible("no divergence is skewed", "skew_lambda", instead="divergence: jsd, with divergence_beta"),
    # Environments
    *no_effect(_WAITS, "env_monitor"),
    Row("dirty_data_mask", (), "only false", unless((False,), "what is not sound is never learned from")),
    Row("open_feedback_turn", (), "only false", unless((False,), "the turn after the last action is not told")),
    Row(
        "use_token_reward",
        (),
        "only false",
        unless((False,), "rewards stand at turns", "adv_estimator: agentic_reinforce"),
    ),
    Row("ratio_type", (), "only token", unless(("token",), "ratios of segments are not here", "policy_loss: gspo")),
    Row("exp_mode", (), "only disable", unless(("disable", None), "agents of experiments are not here")),
    Row("partial_gpu_mode", (), "only false", unless((False,), "a role has its devices whole", "device_mapping")),
    *(
        Row(
            f"reward_normalization.{key}",
            (),
            "only null",
            unless((None, 0, 0.0, 1, 1.0), "scores keep their scale", "reward_scale"),
        )
        for key in ("global_scale_factor", "global_shift_value")
    ),
    *(
        row
        for player in _PLAYERS
        for row in (
            *no_effect("environments hold no model", *under(player, *_OF_A_MODEL)),
            Row(f"{player}.llm_proxy", note="the policy", convert=_asks, agrees="actor_infer"),
            Row(
                f"{player}.group_size_redundancy",
                (),
                "only 0",
                unless((0,), "groups have no spares", "dynamic_sampling"),
            ),
            *no_effect("dynamic_sampling leaves groups out that teach nothing", f"{player}.group_filter_cls"),
        )
    ),
    # Evaluations
    *no_effect(
        "evaluations are answered by the engines of training",
        *under(
            "validation",
            *(
                "name",
                "world_size",
                "device_mapping",
                "num_gpus_per_worker",
                "model_update_frequency",
                "infer_batch_size",
            ),
            *("system_envs", "use_dynamic_batching_in_train", "use_dynamic_batching_in_infer", "use_sequence_packing"),
        ),
        *under(
            "validation.model_args",
            *("model_name_or_path", "disable_gradient_checkpointing", "dtype", "model_type", "lora_alpha", "lora_rank"),
            "lora_target",
        ),
        *under(
            "validation.training_args",
            *("num_train_epochs", "learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "warmup_ratio"),
            *("per_device_train_batch_size", "gradient_accumulation_steps", "warmup_steps"),
        ),
    ),
)
"""Keys of the schema."""
