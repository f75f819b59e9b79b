"""Trinity-RFT: ``trainer``; its ``trainer_config`` is written in verl's keys."""

from __future__ import annotations

from typing import Any, Final

from roll.config.dialects.rows import (
    TRAIN_STRATEGIES,
    Impossible,
    Look,
    Row,
    Sets,
    Unused,
    agreeing,
    choices,
    impossible,
    no_effect,
    own_code_row,
    plain,
)
from roll.config.dialects.trinity.sections import STRATEGY, TRAIN, trainer_option
from roll.config.errors import FixableError

_SAVED: Final = ("always", "never", "last")
_WRITERS: Final = ("single_thread", "single_process", "single_node", "unrestricted")
_SIZES: Final = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
)


def _with_megatron(look: Look) -> bool:
    return look("trainer.trainer_strategy") == "megatron"


def _budget(value: Any, look: Look) -> Any:
    return value if look("trainer.use_dynamic_bsz", True) is True else Unused("trainer.use_dynamic_bsz is not true")


def _dynamic(value: Any, look: Look) -> Any:
    if value is not True or look("trainer.max_token_len_per_gpu") is not None:
        return Unused()
    longest, ranks = look("model.max_model_len"), look("trainer.ulysses_sequence_parallel_size", 1)
    if not isinstance(longest, int) or not isinstance(ranks, int) or ranks < 1:
        raise FixableError("batches by length need a token budget.", "set trainer.max_token_len_per_gpu.")
    # The guide: twice the longest sample, shared by the ranks that divide it.
    return Sets({f"{TRAIN}.max_tokens_per_microbatch": -(-2 * longest // ranks)})


def _ulysses(value: Any, look: Look) -> Any:
    if value == 1:
        return Unused()
    return Unused("Megatron holds the model") if _with_megatron(look) else trainer_option("ulysses_size", value)


def _offloaded(value: Any, look: Look) -> Any:
    if value is not True:
        return Unused() if value is False else value
    if _with_megatron(look):
        return Impossible("Megatron keeps its weights on the devices", "trainer_strategy: fsdp")
    return trainer_option("offload_params", True)


def _megatron(name: str) -> Any:
    def convert(value: Any, look: Look) -> Any:
        if not _with_megatron(look):
            return Unused("another strategy holds the model")
        alone = look("trainer.megatron.tensor_model_parallel_size", 1) == 1
        if name == "sequence_parallel" and value is True and alone:
            return Unused("one rank holds every matrix whole")
        if name.startswith("virtual") and look("trainer.megatron.pipeline_model_parallel_size", 1) == 1:
            return Unused("there is no pipeline")
        return trainer_option(name, value, "megatron_train")

    return convert


def _kept(value: Any, look: Look) -> Any:
    if value == 0:
        return Sets({"checkpoint_config.keep": 1000}, note="0 keeps all: here so many that none goes")
    return value


def _saved(value: Any, look: Look) -> Any:
    if value not in _SAVED:
        raise FixableError("there is no such choice.", f"use {', '.join(_SAVED)}.")
    return value


def _writer(value: Any, look: Look) -> Any:
    if value not in _WRITERS:
        raise FixableError("there is no such choice.", f"use {', '.join(_WRITERS)}.")
    return Unused("one process writes a checkpoint, in the Hugging Face format too")


TRAINER_ROWS: Final = (
    *plain(
        "trainer",
        "",
        total_steps="max_steps",
        save_interval="save_steps",
        grad_clip="max_grad_norm",
        actor_grad_clip="max_grad_norm",
        critic_warmup="critic_warmup",
    ),
    Row(
        "trainer.trainer_strategy",
        "actor_train.strategy_args.strategy_name",
        "`fsdp`, `fsdp2`: `fsdp_train`; `megatron`: `megatron_train`",
        choices(TRAIN_STRATEGIES),
    ),
    Row(
        "trainer.use_dynamic_bsz",
        f"{TRAIN}.max_tokens_per_microbatch",
        "without `max_token_len_per_gpu` twice `model.max_model_len`",
        _dynamic,
    ),
    Row(
        "trainer.max_token_len_per_gpu",
        f"{TRAIN}.max_tokens_per_microbatch",
        "where `use_dynamic_bsz` is true",
        _budget,
    ),
    Row("trainer.use_remove_padding", "actor_train.use_remove_padding"),
    Row(
        "trainer.ulysses_sequence_parallel_size",
        f"{STRATEGY}.strategy_config.ulysses_size",
        "of FSDP",
        _ulysses,
    ),
    *(
        Row(f"trainer.{name}", f"{STRATEGY}.strategy_config.offload_params", "of FSDP", _offloaded)
        for name in ("param_offload", "optimizer_offload", "offload_policy")
    ),
    *no_effect("gradients lie where weights lie", "trainer.grad_offload"),
    *(
        Row(f"trainer.megatron.{name}", f"{STRATEGY}.strategy_config.{name}", "of Megatron", _megatron(name))
        for name in (*_SIZES, "virtual_pipeline_model_parallel_size", "sequence_parallel")
    ),
    Row("trainer.max_checkpoints_to_keep", "checkpoint_config.keep", "0 is 1000", _kept),
    Row("trainer.save_hf_checkpoint", "checkpoint_config.hf_model", "", _saved),
    Row("trainer.save_strategy", note="one process writes", convert=_writer),
    *no_effect("roles have fixed names", "trainer.name"),
    own_code_row("trainer.trust_remote_code"),
    agreeing(
        "trainer.trainer_type",
        "actor_train.strategy_args.strategy_name",
        "the trainer is the strategy of `actor_train`",
        lambda value, look: value == "verl",
    ),
    *no_effect("every evaluation and every step writes its episodes", "trainer.enable_preview"),
    *no_effect("rows are spread over ranks by their length", "trainer.balance_batch"),
    *no_effect("losses divide by the counts of the whole batch", "trainer.fix_actor_microbatch_loss_scale"),
    *impossible(
        "one file says everything", "trainer.trainer_config_path", instead="write its sections into trainer_config"
    ),
)
"""The keys of the trainer."""
