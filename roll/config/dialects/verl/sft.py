"""verl: the sections of its trainers of demonstrations: ``model``, ``optim``, ``engine`` and columns of ``data``."""

from __future__ import annotations

from typing import Any, Final

from roll.config.dialects.checkpoints import contents_rows
from roll.config.dialects.rows import TRAIN_STRATEGIES, Convert, Look, Row, Sets, Unused, no_effect, own_code_row, whole
from roll.config.dialects.verl.optimizer import optimizer_rows
from roll.config.dialects.verl.sections import DTYPES, devices

_TRAIN: Final = "actor_train.training_args"
_MODEL: Final = "actor_train.model_args"
_STRATEGY: Final = "actor_train.strategy_args"
_MICRO_BATCH: Final = 4
"""What `data.micro_batch_size_per_gpu` is where it is not set."""

_ULYSSES: Final = ("ulysses_sequence_parallel_size", "engine.ulysses_sequence_parallel_size")
_MEGATRON: Final = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
)


def row(key: str, native: str, convert: Convert | None = None) -> Row:
    """Return the row of a key that only trainers of demonstrations have."""

    def converted(value: Any, look: Look) -> Any:
        if not look.demonstrates:
            return Unused("a key of supervised fine-tuning")
        outcome = value if convert is None else convert(value, look)
        return outcome if isinstance(outcome, Sets | Unused) else Sets({native: outcome})

    return Row(key, note=f"SFT: `{native}`", convert=converted)


def accumulation(value: Any, look: Look) -> Sets:
    """Return how many passes make the rows of a step: ``value`` rows on all devices."""
    width = devices(look) or 1
    for key in _ULYSSES:
        width = max(1, width // whole(look(key, 1), key))
    micro = whole(look("data.micro_batch_size_per_gpu", _MICRO_BATCH), "data.micro_batch_size_per_gpu")
    passes = max(1, whole(value, "the batch size") // (micro * width))
    size = {f"{_TRAIN}.per_device_train_batch_size": micro}
    return Sets({f"{_TRAIN}.gradient_accumulation_steps": passes}, size)


def column(value: Any, look: Look, keys: str) -> Any:
    """Return the path of a column, inside the mapping that the column holds where ``keys`` names one of its keys."""
    inner = look(keys)
    name = inner[0] if isinstance(inner, list) and inner else inner
    return f"{value}.{name}" if isinstance(name, str) and isinstance(value, str) else value


def _ulysses(value: Any, look: Look) -> Sets:
    return Sets({f"{_STRATEGY}.strategy_config.ulysses_size": value}, {f"{_STRATEGY}.strategy_name": "fsdp_train"})


def _of(engine: str, option: str) -> Convert:
    def convert(value: Any, look: Look) -> Any:
        named = TRAIN_STRATEGIES.get(str(look("engine.strategy")))
        if named is not None and named != engine:
            return Unused("another strategy holds the model")
        return Sets({f"{_STRATEGY}.strategy_config.{option}": value}, {f"{_STRATEGY}.strategy_name": engine})

    return convert


def _stages(value: Any, look: Look) -> Any:
    if look("engine.pipeline_model_parallel_size", 1) == 1:
        return Unused("there is no pipeline")
    return _of("megatron_train", "virtual_pipeline_model_parallel_size")(value, look)


def _offloaded(value: Any, look: Look) -> Any:
    names = ("model.fsdp_config.cpu_offload", "model.fsdp_config.offload_params", "engine.param_offload")
    any_of = any(look(name) is True for name in (*names, "engine.optimizer_offload"))
    return _of("fsdp_train", "offload_params")(any_of or value, look)


def _rank(value: Any, look: Look) -> Any:
    return Unused("0 is off") if value == 0 else value


def _all_modules(value: Any, look: Look) -> Any:
    return Unused("all linear layers are the default") if value == "all-linear" else value


def _format(value: Any, look: Look) -> Any:
    return DTYPES.get(value, value) if isinstance(value, str) else value


def _turned(value: Any, look: Look) -> Any:
    return not value if isinstance(value, bool) else value


def _strategy(value: Any, look: Look) -> Any:
    return TRAIN_STRATEGIES.get(value, value) if isinstance(value, str) else value


def _budget(value: Any, look: Look) -> Any:
    return value if look("data.use_dynamic_bsz", True) is True else Unused("data.use_dynamic_bsz is not true")


def _model(value: Any, look: Look) -> Any:
    used = look.demonstrates or look.kind_has("recorded")
    return Sets({"pretrain": value}) if used else Unused("a key of supervised fine-tuning")


def _response(value: Any, look: Look) -> Any:
    if look.kind_has("recorded"):
        told = f"answers are in a column response or responses: rename {value}"
        return Unused("" if value in ("response", "responses") else told)
    if not look.demonstrates:
        return Unused("a key of supervised fine-tuning")
    return Sets({"response_key": column(value, look, "data.response_dict_keys")})


SFT_ROWS: Final = (
    Row("model.path", note="SFT and evaluation: `pretrain`", convert=_model),
    row("model.partial_pretrain", "pretrain"),
    row("model.enable_gradient_checkpointing", f"{_MODEL}.disable_gradient_checkpointing", _turned),
    row("model.use_remove_padding", "actor_train.use_remove_padding"),
    row("model.lora_rank", f"{_MODEL}.lora_rank", _rank),
    row("model.lora_alpha", f"{_MODEL}.lora_alpha"),
    row("model.target_modules", f"{_MODEL}.lora_target", _all_modules),
    row("model.strategy", f"{_STRATEGY}.strategy_name", _strategy),
    row("model.fsdp_config.model_dtype", f"{_MODEL}.dtype", _format),
    row("model.fsdp_config.cpu_offload", f"{_STRATEGY}.strategy_config.offload_params", _offloaded),
    row("model.fsdp_config.offload_params", f"{_STRATEGY}.strategy_config.offload_params", _offloaded),
    *no_effect("every layer of a model is wrapped, and gathered ahead of its use", "model.fsdp_config.wrap_policy"),
    own_code_row("model.trust_remote_code"),
    *no_effect("kernels are the strategy's", "model.use_liger", "model.use_fused_kernels", "model.external_lib"),
    *no_effect("the tokenizer is that beside the weights", "model.tokenizer_path", "model.use_shm"),
    *optimizer_rows("optim", _TRAIN, of_demonstrations=True),
    row("engine.strategy", f"{_STRATEGY}.strategy_name", _strategy),
    *(row(key, f"{_STRATEGY}.strategy_config.ulysses_size", _ulysses) for key in _ULYSSES),
    row("engine.fsdp_size", f"{_STRATEGY}.strategy_config.fsdp_size", _of("fsdp_train", "fsdp_size")),
    row(
        "engine.reshard_after_forward",
        f"{_STRATEGY}.strategy_config.reshard_after_forward",
        _of("fsdp_train", "reshard_after_forward"),
    ),
    row("engine.param_offload", f"{_STRATEGY}.strategy_config.offload_params", _offloaded),
    row("engine.optimizer_offload", f"{_STRATEGY}.strategy_config.offload_params", _offloaded),
    row("engine.model_dtype", f"{_MODEL}.dtype", _format),
    row("engine.dtype", f"{_MODEL}.dtype", _format),
    *(
        row(
            f"engine.{name}",
            f"{_STRATEGY}.strategy_config.{name}",
            _stages if name.startswith("virtual") else _of("megatron_train", name),
        )
        for name in _MEGATRON
    ),
    *no_effect(
        "a matter of speed and memory that the strategy decides",
        *(
            f"engine.{name}"
            for name in (
                "wrap_policy",
                "forward_prefetch",
                "use_orig_params",
                "use_torch_compile",
                "use_mbridge",
                "vanilla_mbridge",
                "grad_offload",
                "entropy_from_logits_with_chunking",
                "entropy_checkpointing",
                "seed",
                "full_determinism",
                "mixed_precision",
                "use_dist_checkpointing",
                "override_transformer_config",
            )
        ),
    ),
    row("use_remove_padding", "actor_train.use_remove_padding"),
    *contents_rows("checkpoint"),
    *contents_rows("trainer.checkpoint"),
    *no_effect("`data.micro_batch_size_per_gpu` says it of a device", "data.micro_batch_size"),
    *no_effect("rows are written by the chat template as a whole", "data.ignore_input_ids_mismatch"),
    *no_effect("`roll profile` measures a step", "trainer.profile_interval"),
    row("trainer.seed", "seed"),
    row("data.micro_batch_size_per_gpu", f"{_TRAIN}.per_device_train_batch_size"),
    row("data.max_length", "sequence_length"),
    row("data.max_token_len_per_gpu", f"{_TRAIN}.max_tokens_per_microbatch", _budget),
    Row("data.response_key", note="SFT: `response_key`; evaluation: the column of answers", convert=_response),
    row("data.messages_key", "messages_key"),
    row("data.multiturn.messages_key", "messages_key"),
    row("data.multiturn.tools_key", "tools_key"),
    row("data.tools_key", "tools_key"),
    row("data.chat_template", "actor_train.data_args.template"),
    *no_effect("it counts with the key of its column", "data.prompt_dict_keys", "data.response_dict_keys"),
    *no_effect("rows are conversations where `messages_key` names them", "data.multiturn.enable"),
    *no_effect("whether a policy thinks is said for all rows", "data.multiturn.enable_thinking_key"),
    *no_effect("whether a policy thinks is said for all rows", "data.enable_thinking_key"),
    *no_effect("`max_tokens_per_microbatch`, where it is set, limits a pass", "data.use_dynamic_bsz"),
    *no_effect("rows are spread by their length", "data.balance_dp_token", "data.pad_mode", "data.num_workers"),
)
"""The keys that only trainers of demonstrations have."""
