"""Contradictions between the keys of prompts, found before any file is read."""

from __future__ import annotations

from collections.abc import Iterator

from roll.config.errors import Problem, choose_from
from roll.config.prompt_keys import PromptKeys
from roll.config.worker import GeneratingArgs


def prompt_problems(config: PromptKeys) -> Iterator[Problem]:
    """Yield what is wrong with the prompts of a run."""
    yield from data_problems(config)
    yield from length_problems(config, "actor_infer.generating_args", config.actor_infer.generating_args)
    if config.validation is not None:
        yield from length_problems(config, "validation.generating_args", config.validation_generating)


def data_problems(config: PromptKeys) -> Iterator[Problem]:
    """Yield what is wrong with the files of training and validation, and with the shares of domains."""
    data = config.actor_train.data_args
    if not data.file_name and data.custom_cls is None:
        yield Problem(
            "actor_train.data_args.file_name",
            "the pipeline has no prompts to train on.",
            "name a JSON, JSONL, CSV or parquet file, such as examples/data/arithmetic_train.jsonl.",
            data.file_name,
        )
    yield from validation_problems(config)
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


def validation_problems(config: PromptKeys) -> Iterator[Problem]:
    """Yield what is wrong with the files of an evaluation."""
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


def length_problems(config: PromptKeys, path: str, generating: GeneratingArgs) -> Iterator[Problem]:
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
