"""ROLL's keys of a role: its model, data, training, sampling and batches."""

from __future__ import annotations

from typing import Any, Final

from roll.config.dialects.checkpoints import model_row
from roll.config.dialects.counting import steps_of
from roll.config.dialects.model_config import OVERRIDES, config_overrides
from roll.config.dialects.rows import (
    Impossible,
    Look,
    Row,
    Sets,
    Unused,
    choices,
    dropped_if,
    impossible,
    no_effect,
    under,
    unless,
)
from roll.config.dialects.upstream_roll.strategies import strategy_rows

_ROLES: Final = (
    "actor_train",
    "actor_infer",
    "reference",
    "critic",
    "reward",
    "teacher",
    "sft_train",
    "rewards.*",
    "validation",
)
"""Sections with the keys of a role, or some of them."""

_ATTENTION: Final = {"disabled": "eager", "flash_attention_2": "fa2", "fa3": "fa2"}
_SCHEDULES: Final = {"cosine_with_min_lr": "cosine", "warmup_stable_decay": "wsd"}


def role_rows(role: str, native: str) -> tuple[Row, ...]:
    """Return the rows of a role.

    Args:
        role: Its path as ROLL writes it.
        native: Its path here.
    """
    return (
        *_model_rows(role, native),
        *_data_rows(role, native),
        *_training_rows(role, native),
        *_sampling_rows(role, native),
        *_batch_rows(role, native),
        *strategy_rows(role, native),
    )


def _model_rows(role: str, native: str) -> tuple[Row, ...]:
    model, ours = f"{role}.model_args", f"{native}.model_args"
    attention = f"{ours}.attn_implementation"

    def ulysses(value: Any, look: Look) -> Any:
        if value == 1:
            return Unused("a sequence is on one rank, as without it")
        name = str(
            look(f"{role}.strategy_args.strategy_name") or look.native(f"{native}.strategy_args.strategy_name") or ""
        )
        if name.startswith("fsdp"):
            return Sets({f"{native}.strategy_args.strategy_config.ulysses_size": value})
        return Impossible(f"{name or 'the strategy'} does not share sequences so", "context_parallel_size")

    return (
        Row(f"{model}.flash_attn", attention, "", choices(_ATTENTION)),
        Row(f"{model}.attn_implementation", attention, "", choices(_ATTENTION)),
        Row(f"{model}.ulysses_size", f"{native}.strategy_args.strategy_config.ulysses_size", "of FSDP", ulysses),
        *no_effect(
            "layers that are computed again, the head of a model and its adapters are the strategy's",
            f"{model}.gradient_checkpointing_use_reentrant",
            f"{model}.num_labels",
            f"{model}.autocast_adapter_dtype",
        ),
        *no_effect("device_mapping says where a role is", f"{model}.device_map", f"{model}.max_memory"),
        *impossible(
            "no part of a model is kept as it was",
            f"{model}.freeze_module_prefix",
            instead="lora_rank with lora_target trains parts of it",
        ),
        *impossible(
            "adapters are made new", f"{model}.adapter_name_or_path", instead="a model into which they were merged"
        ),
        *impossible("adapters have no dropout", f"{model}.lora_dropout"),
        *impossible(
            "no further modules are trained whole beside adapters", f"{model}.additional_target", instead="lora_target"
        ),
        *impossible("experts get no loss of balance", f"{model}.moe_aux_loss_coef"),
        Row(
            f"{model}.model_config_kwargs",
            tuple(f"{ours}.{name}" for name in OVERRIDES),
            "nothing else of a config.json can be changed",
            config_overrides(native),
        ),
        *no_effect(
            "it says what is printed or written of a model", f"{model}.print_param_status", f"{model}.export_dir"
        ),
    )


def _data_rows(role: str, native: str) -> tuple[Row, ...]:
    data = f"{role}.data_args"

    def single(value: Any, look: Look) -> Any:
        if isinstance(value, str) and "," in value:
            return Impossible("files have no shares of their own", "domain_interleave_probs")
        return Unused("one share is the whole; domain_interleave_probs gives shares of domains")

    return (
        Row(f"{data}.interleave_probs", (), "one share only", single),
        *no_effect("file_name holds whole paths", f"{data}.dataset_dir"),
        Row(f"{data}.eval_file_name", "validation.data_args.file_name", "where evaluations answer prompts", _evaluated),
        *no_effect(
            "the ending of a file says its form, and the place in it names a row", *under(data, "dataset_type", "id")
        ),
        *no_effect(
            "the column of answers is `ground_truth`, or `response_key` where they are imitated", f"{data}.response"
        ),
        *no_effect(
            "rows are prepared as they are drawn, and nothing is kept of it",
            f"{data}.preprocessing_num_workers",
            f"{data}.overwrite_cache",
            f"{data}.cache_path",
            f"{data}.tokenized_path",
            f"{data}.preprocessing_batch_size",
        ),
        *impossible(
            "a policy is shown text only",
            *(
                f"{data}.{name}"
                for name in (
                    "image",
                    "video",
                    "audio",
                    "image_max_pixels",
                    "image_min_pixels",
                    "image_folder",
                    "video_total_pixels",
                    "video_min_pixels",
                    "video_max_pixels",
                    "video_fps",
                    "video_max_frames",
                    "video_resize_chunk_frames",
                    "video_folder",
                    "audio_folder",
                    "custom_data_kwargs_func",
                )
            ),
        ),
        *impossible("rows are all read", f"{data}.streaming", f"{data}.buffer_size"),
        Row(f"{data}.max_train_samples", f"{native}.data_args.max_samples"),
        Row("validation.eval_steps", "eval_steps", "where that is not set", _steps)
        if role == "validation"
        else Row(f"{data}.num_samples", f"{native}.data_args.max_samples"),
    )


def _evaluated(value: Any, look: Look) -> Any:
    own = look.native("validation.data_args.file_name")
    return Unused("validation.data_args.file_name says it") if own is not None else value


def _spoken(value: Any) -> str:
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)


_SWITCHES: Final = {
    "topr_positive_weight": ((1, 1.0), "right and wrong answers have the weight 1 each", "policy_loss: topr"),
    "topr_negative_weight": ((1, 1.0), "right and wrong answers have the weight 1 each", "policy_loss: topr"),
    "apply_loss_scale": ((True,), "losses divide by the counts of the whole batch", "loss_agg_mode"),
    "mtp_training_mode": (("disabled",), "tokens that are foretold in passing are no part of the loss", ""),
    "opd_kl_coef": ((1, 1.0), "teachers weigh the same", ""),
    "router_replay.mode": (("disable", "disabled"), "the routes of experts are not replayed", "sampler_correction"),
}
"""Keys of a role by the values that change nothing here, and why others do not."""


def _steps(value: Any, look: Look) -> Any:
    return Unused("eval_steps says it") if look.native("eval_steps") is not None else value


def _training_rows(role: str, native: str) -> tuple[Row, ...]:
    training, ours = f"{role}.training_args", f"{native}.training_args"

    def least(value: Any, look: Look) -> Any:
        ratio = value.get("min_lr_rate") if isinstance(value, dict) else None
        return Impossible("the schedule has no further options", "min_lr_ratio") if ratio is None else ratio

    def saved(value: Any, look: Look) -> Any:
        if value not in ("no", "steps", "epoch", False):
            return Impossible("checkpoints are written every so many steps", "save_steps")
        if value == "steps" or look.native("save_steps") is not None:
            return Unused("save_steps says how many")
        if value in ("no", False):
            return Sets({"save_steps": 0}, note="after the last step there is a checkpoint all the same")
        if look.kind_has("save_epochs"):
            return Sets({"save_epochs": 1})
        batch = look.native("rollout_batch_size")
        return steps_of(1, look.native(f"{native}.data_args.file_name"), batch, "save_steps", "save_steps")

    return (
        Row(f"{training}.lr_scheduler_type", f"{ours}.lr_scheduler_type", "", choices(_SCHEDULES)),
        Row(f"{training}.lr_scheduler_kwargs", f"{ours}.min_lr_ratio", "of `min_lr_rate`", least),
        Row(f"{training}.max_grad_norm", "max_grad_norm"),
        Row(f"{training}.max_steps", "max_steps"),
        model_row(f"{training}.save_hf_model"),
        *no_effect("`seed` is that of the run, the order of rows included", f"{training}.data_seed"),
        *no_effect("a matter of speed that PyTorch decides", f"{training}.tf32"),
        Row(f"{training}.save_steps", "save_steps"),
        Row(f"{training}.save_strategy", "save_steps", "`no` saves at the end only", saved),
        Row(f"{training}.logging_steps", "logging_steps"),
        *no_effect("model_args.dtype says it", f"{training}.bf16", f"{training}.fp16"),
        *no_effect("held-out rows and scores take infer_batch_size", f"{training}.per_device_eval_batch_size"),
        *no_effect("model_args.disable_gradient_checkpointing says it", f"{training}.gradient_checkpointing"),
        *no_effect("the keys of the run say it", f"{training}.output_dir", f"{training}.seed"),
        *no_effect(
            "rows are drawn in the process that trains",
            f"{training}.dataloader_num_workers",
            f"{training}.dataloader_pin_memory",
            f"{training}.remove_unused_columns",
        ),
    )


def _sampling_rows(role: str, native: str) -> tuple[Row, ...]:
    sampling, ours = f"{role}.generating_args", f"{native}.generating_args"

    def greedy(value: Any, look: Look) -> Any:
        return Unused("temperature above 0 samples") if value is not False else Sets({f"{ours}.temperature": 0})

    return (
        Row(f"{sampling}.do_sample", f"{ours}.temperature", "false is temperature 0", greedy),
        Row(f"{sampling}.stop", f"{ours}.stop_strings"),
        Row(
            f"{sampling}.include_stop_str_in_output",
            (),
            "only true",
            unless((True,), "stop strings stay in a response, for they were sampled", "stop_strings"),
        ),
        *(Row(f"{sampling}.{key}", f"{ours}.min_new_tokens") for key in ("min_tokens", "min_length")),
        *no_effect("sequence_length limits prompt and response", f"{sampling}.max_length"),
        Row(f"{sampling}.presence_penalty", (), "only 0", unless((0, 0.0), "it is not charged", "repetition_penalty")),
        Row(f"{sampling}.frequency_penalty", (), "only 0", unless((0, 0.0), "it is not charged", "repetition_penalty")),
        *no_effect("log-probs of what was sampled are always there", f"{sampling}.logprobs"),
        *no_effect("it is about beams, and there are none", f"{sampling}.length_penalty", f"{sampling}.early_stopping"),
        *no_effect("text is read without special tokens", f"{sampling}.skip_special_tokens"),
    )


def _batch_rows(role: str, native: str) -> tuple[Row, ...]:
    tokens = f"{native}.training_args.max_tokens_per_microbatch"

    def scored(value: Any, look: Look) -> Any:
        trained = look(f"{role}.max_tokens_per_microbatch_in_train")
        if trained:
            return Unused("training_args.max_tokens_per_microbatch limits scoring passes too")
        return Unused() if value == 0 else value

    def packed(value: Any, look: Look) -> Any:
        longest = value.get("max_packed_sequence_length_train") or value.get("max_packed_sequence_length_forward")
        return Unused("passes are as full as the batch sizes let them be") if longest is None else longest

    def own_class(value: Any, look: Look) -> Any:
        if not isinstance(value, str) or not value.startswith("roll.pipeline."):
            return value
        return Unused("the role has a class of its own here; policy_loss chooses what it trains with")

    grader = () if role == "rewards.*" else (Row(f"{role}.worker_cls", f"{native}.worker_cls", "", own_class),)
    return (
        *grader,
        Row(f"{role}.max_tokens_per_microbatch_in_train", tokens, "0 is off", dropped_if((0,))),
        Row(f"{role}.max_tokens_per_microbatch_in_infer", tokens, "of roles that are not trained", scored),
        Row(f"{role}.sequence_packing_args", tokens, "the longest pack", packed),
        *no_effect(
            "no sequence is padded to a multiple",
            f"{role}.sequence_length_round_in_train",
            f"{role}.sequence_length_round_in_infer",
        ),
        *no_effect(
            "where a model waits while another one has its devices is decided by the run", f"{role}.offload_nccl"
        ),
        *no_effect("rpc_timeout is that of all calls", f"{role}.backend_timeout"),
        *(
            Row(f"{role}.{key}", (), f"only {_spoken(off[0])}", unless(off, reason, instead))
            for key, (off, reason, instead) in _SWITCHES.items()
        ),
        *(
            ()
            if role in ("rewards.*", "teacher.*", "teacher")
            else no_effect("the tags that a role serves are those of `rewards`", f"{role}.tag_included")
        ),
        *no_effect("log-probs are computed in fp32 from the logits", f"{role}.logits_in_fp32"),
        *no_effect("it says how a worker is named or watched", f"{role}.max_concurrency", f"{role}.profiler_config"),
    )


ROLES: Final[tuple[Row, ...]] = tuple(row for role in _ROLES for row in role_rows(role, role))
