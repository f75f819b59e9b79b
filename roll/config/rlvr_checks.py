"""Contradictions between the keys of the RLVR pipeline, found before any file is read."""

from __future__ import annotations

from collections.abc import Iterator

from roll.config.errors import Problem
from roll.config.grading_checks import custom_function_problems, graded_problems
from roll.config.prompt_checks import length_problems, prompt_problems, validation_problems
from roll.config.rlvr_keys import RLVRKeys


def rlvr_problems(config: RLVRKeys) -> Iterator[Problem]:
    """Yield the contradictions that only an RLVR pipeline can have."""
    yield from prompt_problems(config)
    yield from _domain_problems(config)
    yield from custom_function_problems(config)


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
    yield from validation_problems(config)
    yield from _domain_problems(config)
    yield from custom_function_problems(config)
    yield from length_problems(config, "validation.generating_args", config.val_generating)


def _domain_problems(config: RLVRKeys) -> Iterator[Problem]:
    if not config.rewards:
        yield Problem(
            "rewards",
            "no domain says how responses are graded.",
            "add one, such as rewards: {math_rule: {tag_included: [arithmetic]}}.",
        )
    yield from graded_problems(config)
