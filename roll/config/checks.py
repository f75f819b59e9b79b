"""Contradictions between keys that are each valid alone, found before any model loads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from roll.config.algorithm import ADVANTAGE_ESTIMATORS, GROUP_ESTIMATORS, POLICY_LOSSES, UNBIASED_BY_RATIO
from roll.config.errors import Problem, choose_from
from roll.config.experience_checks import experience_cautions, experience_problems
from roll.config.rl_keys import RLKeys
from roll.config.sampling_keys import SamplingKeys


def rl_problems(config: RLKeys) -> Iterator[Problem]:
    """Yield the contradictions that any run of reinforcement learning can have."""
    yield from _name_problems(config)
    yield from _helper_model_problems(config)
    yield from experience_problems(config)
    if config.expert is not None:
        yield from config.expert.problems()
        if config.expert.join == "groups" and config.adv_estimator not in GROUP_ESTIMATORS:
            message = "an expert's answer is compared with those of its group, which the estimator does not do."
            fix = f"use one that does ({', '.join(sorted(GROUP_ESTIMATORS))}), or expert.join: batch."
            yield Problem("adv_estimator", message, fix, config.adv_estimator)


def rl_cautions(config: RLKeys) -> Iterator[str]:
    """Yield what has no effect or probably not the one that was meant."""
    yield from experience_cautions(config)
    if config.reference is not None and not config.needs_reference:
        yield (
            "reference: a reference model is configured, but no term uses it. Remove it (reference: null) to save its "
            "memory, or turn on a term: use_kl_loss: true with kl_loss_coef, or init_kl_coef above 0."
        )
    if config.critic is not None and config.adv_estimator == "gae" and config.critic_warmup >= config.max_steps > 0:
        yield f"critic_warmup: the policy is never trained, since max_steps is only {config.max_steps}."
    if config.critic is not None and config.adv_estimator != "gae":
        yield (
            f"critic: a critic is configured, but adv_estimator {config.adv_estimator!r} does not use one. Remove it "
            "(critic: null), or set adv_estimator: gae."
        )
    if config.use_kl_loss and config.kl_loss_coef == 0:
        yield "use_kl_loss: the divergence has no weight. Set kl_loss_coef above 0."
    if config.kl_loss_coef > 0 and not config.use_kl_loss:
        yield "kl_loss_coef: has no effect. Set use_kl_loss: true."
    if config.add_token_level_kl and config.init_kl_coef == 0:
        yield "add_token_level_kl: has no effect. Set init_kl_coef above 0."


def _name_problems(config: RLKeys) -> Iterator[Problem]:
    """Check names that are open to registration: known here, or left to the modules that register more."""
    if config.algorithm_modules:
        return
    names: Iterable[tuple[str, str, Iterable[str]]] = [
        ("adv_estimator", config.adv_estimator, ADVANTAGE_ESTIMATORS),
        ("policy_loss", config.policy_loss, POLICY_LOSSES),
    ]
    for path, name, known in names:
        if name not in known:
            fix = f"{choose_from(name, known)} One of your own needs its module in algorithm_modules."
            yield Problem(path, "nothing is registered under this name.", fix, name)


def length_problems(config: SamplingKeys) -> Iterator[Problem]:
    """Yield lengths that do not fit in each other."""
    length = config.sequence_length
    sampling: list[tuple[str, Any]] = [
        ("actor_infer.generating_args", config.actor_infer.generating_args),
        ("val_generating_args", config.val_generating_args),
    ]
    for path, generating in sampling:
        if generating is not None and generating.max_new_tokens > length:
            yield Problem(
                f"{path}.max_new_tokens",
                f"a response of {generating.max_new_tokens} tokens cannot fit in sequence_length {length}.",
                f"set {path}.max_new_tokens to at most {length}, or sequence_length to more than "
                f"{generating.max_new_tokens}.",
                generating.max_new_tokens,
            )
        if generating is not None and generating.min_new_tokens > generating.max_new_tokens:
            yield Problem(
                f"{path}.min_new_tokens",
                f"a response of at least {generating.min_new_tokens} tokens is longer than max_new_tokens "
                f"{generating.max_new_tokens}.",
                f"set {path}.min_new_tokens to at most {generating.max_new_tokens}, or raise {path}.max_new_tokens.",
                generating.min_new_tokens,
            )
    if config.prompt_length and config.response_length and config.prompt_length + config.response_length > length:
        total = config.prompt_length + config.response_length
        yield Problem(
            "sequence_length",
            f"prompt_length {config.prompt_length} + response_length {config.response_length} = {total} is more.",
            f"set sequence_length to {total}, or shorten prompt_length or response_length.",
            length,
        )


def _helper_model_problems(config: RLKeys) -> Iterator[Problem]:
    """Check that a term that needs another model has it, and that it is one that makes sense."""
    if config.needs_reference and config.reference is None and not config.is_own_reference:
        key, off = ("use_kl_loss", "false") if config.use_kl_loss else ("init_kl_coef", "0")
        yield Problem(
            key,
            "the divergence from a reference model is used, but no reference is configured.",
            f"add a reference: section (strategy_args: {{strategy_name: hf_infer}}), or set {key}: {off}."
            + ("" if config.kl_penalty == "full" else " LoRA adapters (lora_rank) can be switched off, and need none."),
            getattr(config, key),
        )
    if config.use_kl_loss and config.use_bias_correction_kl and config.kl_penalty not in UNBIASED_BY_RATIO:
        yield Problem(
            "use_bias_correction_kl",
            f"the ratio makes the gradient of {' and '.join(UNBIASED_BY_RATIO)} unbiased, and not that of "
            f"{config.kl_penalty}.",
            "set kl_penalty: low_var_kl, or use_bias_correction_kl: false.",
            True,
        )
    if config.adv_estimator == "gae" and config.critic is None:
        yield Problem(
            "adv_estimator",
            "gae needs a value model, but no critic is configured.",
            "add a critic: section (strategy_args: {strategy_name: fsdp_train}), or use an estimator without one, "
            "such as grpo.",
            "gae",
        )


def responses_problems(config: RLKeys, size: int) -> Iterator[Problem]:
    """Yield every choice that compares the responses to a prompt, where each has one."""
    yield from group_of_one_problems(config, "num_return_sequences_in_group", size, "the responses to one prompt")


def group_of_one_problems(
    config: RLKeys, key: str, size: int, compared: str, others: Iterable[tuple[str, str]] = ()
) -> Iterator[Problem]:
    """Yield every choice that compares the members of a group, where groups have one member.

    Args:
        config: The run.
        key: The key that says how large groups are.
        size: Its value.
        compared: What is compared, for the message.
        others: Further choices that only this pipeline has, each with its alternative.
    """
    if size > 1:
        return
    reasons = []
    if config.adv_estimator in GROUP_ESTIMATORS:
        reasons.append((f"adv_estimator {config.adv_estimator!r}", "adv_estimator: reinforce"))
    reasons += others
    if config.reward_norm == "group":
        reasons.append(("reward_norm 'group'", "reward_norm: batch"))
    if config.dynamic_sampling.enable:
        reasons.append(("dynamic_sampling", "dynamic_sampling.enable: false"))
    for reason, alternative in reasons:
        yield Problem(
            key,
            f"{reason} compares {compared}, and a group of 1 has nobody to compare with: every advantage would be 0.",
            f"set {key} to 2 or more (8 is usual), or {alternative}.",
            size,
        )
