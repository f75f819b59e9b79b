"""ChatLearn: ``models.policy_trainer`` and ``models.ref_policy``: losses, optimiser, batches."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from roll.config.dialects.chatlearn.sections import (
    REFERENCE,
    TRAINER,
    has_reference,
    shared_devices,
    trains_with_megatron,
)
from roll.config.dialects.checkpoints import model_row
from roll.config.dialects.rows import Impossible, Look, Row, Sets, Unused, agreeing, choices, negated, no_effect, plain
from roll.config.errors import FixableError

_TRAIN: Final = "actor_train.training_args"
_NUMBERS: Final = choices({True: "bf16", False: "fp32"})


def _kl_coef(value: Any, look: Look) -> Any:
    # Above 0 it turns the term on, as the guide says; its estimate is k3.
    if value == 0:
        return Sets({"kl_loss_coef": value})
    return Sets({"use_kl_loss": True, "kl_loss_coef": value}, {"kl_penalty": "low_var_kl"})


def _gspo(value: Any, look: Look) -> Any:
    if not isinstance(value, bool):
        raise FixableError("must be true or false.", "write true or false.")
    return "gspo" if value else Unused()


def _budget(value: Any, look: Look) -> Any:
    return value if look(f"{TRAINER}.packing") is True else Unused(f"{TRAINER}.packing is not true")


def _packing(value: Any, look: Look) -> Any:
    if value is True and look(f"{TRAINER}.max_token_in_packing") is None:
        raise FixableError("packing needs a token budget.", f"set {TRAINER}.max_token_in_packing.")
    return value


def _reference(value: Any, look: Look) -> Any:
    return value if has_reference(look) else Unused("there is no reference")


def _scoring_budget(value: Any, look: Look) -> Any:
    packs = look(f"{REFERENCE}.packing") is True
    return _reference(value if packs else Unused(f"{REFERENCE}.packing is not true"), look)


def _weights(value: Any, look: Look) -> Any:
    """Take the model of the sampler, which is in the format of the model hub, where Megatron has weights of its own."""
    own = look("models.policy.load")
    if own in (None, value):
        return Sets({"pretrain": value})
    if trains_with_megatron(look):
        note = "weights come from it in Megatron-Core's format, all else from models.policy.load"
        return Sets({"pretrain": own, "actor_train.strategy_args.strategy_config.load": value}, note=note)
    return Sets({"pretrain": own}, note="weights come from models.policy.load, in the Hugging Face format")


def _first_weights(value: Any, look: Look) -> Any:
    hub = look("models.policy.load")
    if trains_with_megatron(look) and hub not in (None, value):
        scores = {"reference.strategy_args.strategy_name": "megatron_infer"}
        return _reference(Sets({"reference.strategy_args.strategy_config.load": value}, scores), look)
    own = look(f"{TRAINER}.load")
    return _reference(Unused() if own == value else Sets({"reference.model_args.model_name_or_path": value}), look)


def _is_the_models(value: Any, look: Look) -> bool:
    return value in (look("models.policy.load"), look(f"{TRAINER}.load"), "HuggingFaceTokenizer")


def _as_for_the_policy(name: str, value: Any, look: Look) -> bool:
    return bool(value == look(f"models.policy.{name}", look(f"{TRAINER}.{name}")))


def _min_lr(value: Any, look: Look) -> Any:
    peak = look(f"{TRAINER}.optimizer.lr")
    numbers = all(isinstance(rate, int | float) and not isinstance(rate, bool) for rate in (value, peak))
    if not numbers or not peak:
        raise FixableError("it is a share of the peak here, and there is none.", f"set {TRAINER}.optimizer.lr.")
    return value / peak


def _longest(value: Any, look: Look) -> Any:
    asked = look("models.policy.max_response_tokens_length")
    return value if asked in (None, value) else Unused("models.policy says how long responses are")


def _longest_prompt(value: Any, look: Look) -> Any:
    asked = look("models.policy.max_prompt_tokens_length")
    return value if asked in (None, value) else Unused("models.policy says how long prompts are")


def _clipped_again(value: Any, look: Look) -> Any:
    if look(f"{TRAINER}.use_group_sequence_policy") is True:
        return Unused("gspo clips ratios of sequences, once")
    return value


def _difference(value: Any, look: Look) -> Any:
    return Impossible("log-ratios are clipped where they would overflow, and nowhere before", "leave it out")


LOSS_ROWS: Final = (
    Row(f"{TRAINER}.pos_clip_ratio", "pg_clip_high"),
    Row(f"{TRAINER}.neg_clip_ratio", "pg_clip_low"),
    Row(f"{TRAINER}.final_clip_ratio", "dual_clip_loss", "a lower bound of the loss", _clipped_again),
    Row(f"{TRAINER}.diff_clip_ratio", (), "not possible", _difference),
    Row(f"{TRAINER}.entropy_coef", "entropy_loss_coef"),
    Row(
        f"{TRAINER}.kl_coef",
        ("kl_loss_coef", "use_kl_loss"),
        "above 0 turns `use_kl_loss` on, with `kl_penalty: low_var_kl` unless it is set, and with a reference",
        _kl_coef,
    ),
    Row(f"{TRAINER}.use_group_sequence_policy", "policy_loss", "true is `gspo`", _gspo),
)
"""The keys of the loss, which may stand alone."""

TRAINER_ROWS: Final = (
    *LOSS_ROWS,
    Row(f"{TRAINER}.optimizer.lr", f"{_TRAIN}.learning_rate"),
    Row(f"{TRAINER}.optimizer.min_lr", f"{_TRAIN}.min_lr_ratio", "over `lr`", _min_lr),
    Row(f"{TRAINER}.optimizer.clip_grad", "max_grad_norm"),
    *plain(
        f"{TRAINER}.optimizer", _TRAIN, weight_decay="weight_decay", adam_beta1="adam_beta1", adam_beta2="adam_beta2"
    ),
    Row(f"{TRAINER}.generation_batch_size", "actor_train.infer_batch_size"),
    Row(f"{TRAINER}.train_micro_batch_size", f"{_TRAIN}.per_device_train_batch_size"),
    Row(f"{TRAINER}.packing", "actor_train.use_sequence_packing", "needs `max_token_in_packing`", _packing),
    Row(f"{TRAINER}.max_token_in_packing", f"{_TRAIN}.max_tokens_per_microbatch", "where `packing` is true", _budget),
    Row(
        f"{TRAINER}.load",
        ("pretrain", "actor_train.strategy_args.strategy_config.load"),
        "in the Hugging Face format; of Megatron, beside `policy.load`: in its own",
        _weights,
    ),
    Row(f"{TRAINER}.seed", "seed"),
    Row(f"{TRAINER}.max_prompt_tokens_length", "prompt_length", "", _longest_prompt),
    Row(f"{TRAINER}.max_response_tokens_length", "response_length", "", _longest),
    Row(
        f"{TRAINER}.seq_length",
        "sequence_length",
        "the guide's sum counts the prompt twice; here it is prompt + response",
    ),
    Row(
        f"{TRAINER}.gradient_checkpointing",
        "actor_train.model_args.disable_gradient_checkpointing",
        "turned around",
        negated,
    ),
    Row(f"{TRAINER}.bf16", "actor_train.model_args.dtype", "true is `bf16`", _NUMBERS),
    Row(f"{TRAINER}.trainable", note="The policy is what is trained.", only=(True,), agrees="actor_train"),
    *(
        agreeing(f"{section}.{name}", "pretrain", "the tokenizer is the model's", _is_the_models)
        for section in (TRAINER, REFERENCE)
        for name in ("tokenizer_model", "tokenizer_type")
    ),
    Row(f"{TRAINER}.gpu_per_process", "actor_train.num_gpus_per_worker"),
    Row(
        f"{TRAINER}.num_gpu",
        ("actor_train.device_mapping", "actor_infer.device_mapping", "num_gpus_per_node"),
        "machines of eight devices; with `colocation` roles take turns on them",
        shared_devices,
    ),
    model_row(f"{TRAINER}.save_hf"),
    *no_effect(
        "it follows from the devices of the role",
        *(
            f"{section}.{name}"
            for section in (TRAINER, REFERENCE)
            for name in ("num_replica", "replica_dp_size", "num_cpu", "cpu_per_process")
        ),
    ),
    *no_effect("weights are handed over after every step", f"{TRAINER}.sync_frequency"),
    Row(f"{REFERENCE}.generation_batch_size", "reference.infer_batch_size", "of the reference", _reference),
    Row(
        f"{REFERENCE}.load",
        ("reference.model_args.model_name_or_path", "reference.strategy_args.strategy_config.load"),
        "of the reference; of Megatron, beside `policy.load`: in its own format",
        _first_weights,
    ),
    Row(
        f"{REFERENCE}.bf16",
        "reference.model_args.dtype",
        "of the reference",
        lambda value, look: _reference(_NUMBERS(value, look), look),
    ),
    Row(f"{REFERENCE}.trainable", note="A reference is frozen.", only=(False,), agrees="reference"),
    Row(f"{REFERENCE}.packing", "reference.use_sequence_packing", "of the reference", _reference),
    Row(
        f"{REFERENCE}.max_token_in_packing",
        "reference.training_args.max_tokens_per_microbatch",
        "where `packing` is true",
        _scoring_budget,
    ),
    *no_effect(
        "batches are scored by `infer_batch_size`",
        *(
            f"{REFERENCE}.{name}"
            for name in (
                "seq_length",
                "num_inference_per_prompt",
                "sync_frequency",
                "gradient_checkpointing",
                "save_hf",
            )
        ),
    ),
    *(
        agreeing(
            f"{REFERENCE}.{name}",
            native,
            "a reference scores samples of any length",
            partial(_as_for_the_policy, name),
        )
        for name, native in (
            ("max_prompt_tokens_length", "prompt_length"),
            ("max_response_tokens_length", "response_length"),
        )
    ),
    *no_effect(
        "models.policy says it",
        *(f"{section}.enable_thinking" for section in (TRAINER, REFERENCE)),
        f"{TRAINER}.num_inference_per_prompt",
    ),
    *no_effect("a reference has no gradients", f"{REFERENCE}.calculate_per_token_loss"),
    Row(f"{REFERENCE}.gpu_per_process", "reference.num_gpus_per_worker", "of the reference", _reference),
    Row(
        f"{REFERENCE}.num_gpu",
        note="`models.policy_trainer.num_gpu` counts them",
        convert=lambda value, look: _reference(Unused(), look),
        agrees="reference.device_mapping",
    ),
    *no_effect("the seed of the run holds for all of it", f"{REFERENCE}.seed"),
)
"""The keys of the models that are trained and compared with."""
