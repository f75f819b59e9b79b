"""Contradictions between the keys of rewards, found before any file is read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from roll.common.spelling import nearest
from roll.config.errors import Problem
from roll.config.grading_keys import DOMAIN_VERIFIERS, GradedKeys, RewardConfig
from roll.config.role_checks import name_problems

FILTER_ARGUMENTS: Final = {
    "no_filter": (),
    "mean_filter": ("threshold_down", "threshold_up"),
    "std_filter": ("std_threshold",),
}
"""Keys of ``query_filter_config.filter_args`` by filter."""


def graded_problems(config: GradedKeys) -> Iterator[Problem]:
    """Yield what is wrong with the domains of any pipeline."""
    owners: dict[str, list[str]] = defaultdict(list)
    for domain, reward in config.rewards.items():
        for tag in reward.tags(domain):
            owners[tag].append(domain)
        yield from _verifier_problems(config, domain, reward)
        yield from _filter_problems(domain, reward)
    for tag, domains in owners.items():
        if len(domains) > 1:
            yield Problem(
                f"rewards.{domains[1]}.tag_included",
                f"tag {tag!r} belongs to {' and '.join(domains)}: it is not clear which grades its rows.",
                "leave it in one of them.",
                tag,
            )


def _verifier_problems(config: GradedKeys, domain: str, reward: RewardConfig) -> Iterator[Problem]:
    path = f"rewards.{domain}"
    yield from name_problems(config, f"{path}.strategy_args.strategy_name", reward.strategy_args.strategy_name)
    if reward.verifiers and reward.verifier_function:
        yield Problem(
            f"{path}.verifier_function",
            "verifiers and verifier_function are both set.",
            f"remove one of them; {path}.verifiers: {{name: weight}} says both at once.",
            reward.verifier_function,
        )
    names, weights = reward.verifier_function or [], reward.verifier_weight
    if weights is not None and len(weights) != len(names):
        yield Problem(
            f"{path}.verifier_weight",
            f"{len(weights)} weights for {len(names)} verifiers.",
            "give one weight for each name in verifier_function.",
            weights,
        )
        return
    if not reward.terms(domain) and config.custom_reward_function is None:
        close = nearest(domain, DOMAIN_VERIFIERS)
        hint = f" (did you mean the domain {close}?)" if close else ""
        yield Problem(
            f"{path}.verifiers",
            f"domain {domain} has no verifier{hint}.",
            f"name one: {path}.verifiers: {{math: 1.0}}.",
        )


def custom_function_problems(config: GradedKeys) -> Iterator[Problem]:
    """A reward function that no domain uses."""
    custom = config.custom_reward_function
    named = [reward.verifiers or reward.verifier_function for reward in config.rewards.values()]
    if custom is None or not all(named) or any(custom.name in names for names in named if names):
        return
    if named:
        domain = next(iter(config.rewards))
        yield Problem(
            "custom_reward_function",
            f"no domain is graded by {custom.name}: each names its verifiers.",
            f"name it there (rewards.{domain}.verifiers: {{{custom.name}: 1.0}}), or remove the verifiers.",
            custom.name,
        )


def _filter_problems(domain: str, reward: RewardConfig) -> Iterator[Problem]:
    known = FILTER_ARGUMENTS[reward.query_filter_config.type]
    for name in reward.query_filter_config.filter_args:
        if name not in known:
            path = f"rewards.{domain}.query_filter_config.filter_args.{name}"
            fix = f"use {', '.join(known)}." if known else "choose a type: mean_filter or std_filter."
            yield Problem(path, f"{reward.query_filter_config.type} has no such argument.", fix)
