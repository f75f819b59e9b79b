"""Contradictions between the keys of the RLVR pipeline, found before any file is read."""

from __future__ import annotations

from collections.abc import Iterator

from roll.config.checks import group_of_one_problems
from roll.config.errors import Problem, choose_from
from roll.config.grading_checks import custom_function_problems, graded_problems
from roll.config.rlvr_keys import RLVRKeys
from roll.config.worker import GeneratingArgs


def rlvr_problems(config: RLVRKeys) -> Iterator[Problem]:
    """Yield the contradictions that only an RLVR pipeline can have."""
    yield from _data_problems(config)
    yield from _domain_problems(config)
    yield from custom_function_problems(config)
    size = config.num_return_sequences_in_group
    yield from group_of_one_problems(config, "num_return_sequences_in_group", size, "the responses to one prompt")
    yield from _length_problems(config, "actor_infer.generating_args", config.actor_infer.generating_args)
    if config.validation is not None:
        yield from _length_problems(config, "validation.generating_args", config.val_generating)


def rlvr_cautions(config: RLVRKeys) -> Iterator[str]:
    """Yield what has no effect or probably not the one that was meant."""
    longest = config.actor_infer.generating_args.max_new_tokens
    if config.response_length is not None and config.response_length > longest:
        yield (
            f"response_length: responses end after actor_infer.generating_args.max_new_tokens={longest} tokens "
            f"already. Remove max_new_tokens, so that they may have {config.response_length}."
        )
    filters = [reward.query_filter_config.type for reward in config.rewards.values()]
    if config.is_use_additional_prompts and not config.dynamic_sampling.enable and set(filters) <= {"no_filter"}:
        yield (
            "is_use_additional_prompts: has no effect, for no group is ever replaced. Set dynamic_sampling.enable: "
            "true, or a query_filter_config."
        )


def evaluation_problems(config: RLVRKeys) -> Iterator[Problem]:
    """Yield what stands in the way of an evaluation without training."""
    if config.validation is None:
        yield Problem(
            "validation",
            "an evaluation needs prompts with right answers.",
            "name a file: validation.data_args.file_name=examples/data/arithmetic_val.jsonl.",
        )
    yield from _validation_problems(config)
    yield from _domain_problems(config)
    yield from custom_function_problems(config)
    yield from _length_problems(config, "validation.generating_args", config.val_generating)


def _data_problems(config: RLVRKeys) -> Iterator[Problem]:
    data = config.actor_train.data_args
    if not data.file_name and data.custom_cls is None:
        yield Problem(
            "actor_train.data_args.file_name",
            "the pipeline has no prompts to train on.",
            "name a JSON, JSONL, CSV or parquet file, such as examples/data/arithmetic_train.jsonl.",
            data.file_name,
        )
    yield from _validation_problems(config)
    if config.validation is not None and config.val_data_args.template not in (None, "native", config.chat_template):
        yield Problem(
            "validation.data_args.template",
            f"the policy learns conversations of another template ({config.chat_template or 'native'}).",
            "remove it: evaluations use actor_train.data_args.template.",
            config.val_data_args.template,
        )
    if config.validation is not None and config.val_data_args.enable_thinking != data.enable_thinking:
        yield Problem(
            "validation.data_args.enable_thinking",
            f"the policy learns with enable_thinking={data.enable_thinking}.",
            "remove it: evaluations use actor_train.data_args.enable_thinking.",
            config.val_data_args.enable_thinking,
        )
    shares = data.domain_interleave_probs
    if shares is not None:
        for domain in shares:
            if domain not in config.rewards:
                fix = choose_from(domain, config.rewards) if config.rewards else "define it under rewards:."
                yield Problem(
                    f"actor_train.data_args.domain_interleave_probs.{domain}", "rewards: has no such domain.", fix
                )
        if abs(sum(shares.values()) - 1) > 1e-6:
            yield Problem(
                "actor_train.data_args.domain_interleave_probs",
                f"the shares sum to {sum(shares.values()):g}.",
                "let them sum to 1.",
                shares,
            )


def _validation_problems(config: RLVRKeys) -> Iterator[Problem]:
    if config.validation is None:
        return
    data = config.validation.data_args
    if not data.file_name and data.custom_cls is None:
        yield Problem(
            "validation.data_args.file_name",
            "an evaluation needs prompts.",
            "name a file, or remove validation: to train without evaluations.",
        )
    if data.prompt is not None and data.messages is not None:
        yield Problem(
            "validation.data_args.messages",
            f"prompt ({data.prompt!r}) and messages are both set, but a row has only one of them.",
            "remove validation.data_args.prompt or validation.data_args.messages.",
            data.messages,
        )


def _domain_problems(config: RLVRKeys) -> Iterator[Problem]:
    if not config.rewards:
        yield Problem(
            "rewards",
            "no domain says how responses are graded.",
            "add one, such as rewards: {math_rule: {tag_included: [arithmetic]}}.",
        )
    yield from graded_problems(config)


def _length_problems(config: RLVRKeys, path: str, generating: GeneratingArgs) -> Iterator[Problem]:
    """A longest response must fit in ``response_length``, and with a prompt of ``prompt_length`` in a sample."""
    limit = config.response_length
    if limit is not None and generating.max_new_tokens > limit:
        yield Problem(
            f"{path}.max_new_tokens",
            f"a response of {generating.max_new_tokens} tokens is longer than response_length {limit}.",
            f"remove max_new_tokens, which is then {limit}, or raise response_length.",
            generating.max_new_tokens,
        )
    if config.prompt_length is None:
        return
    needed = config.prompt_length + generating.max_new_tokens
    if needed > config.sequence_length:
        yield Problem(
            f"{path}.max_new_tokens",
            f"prompt_length {config.prompt_length} + max_new_tokens {generating.max_new_tokens} = {needed} tokens "
            f"do not fit in sequence_length {config.sequence_length}.",
            f"set sequence_length to {needed}, or lower one of the others.",
            generating.max_new_tokens,
        )
