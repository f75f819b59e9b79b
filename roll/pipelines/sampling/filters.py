"""Which groups are worth training on."""

from __future__ import annotations

from collections.abc import Callable

import torch

from roll.algorithms.filters import mean_std_filter, zero_variance_filter
from roll.config.prompt_keys import PromptKeys
from roll.schedulers.source_share import Keep
from roll.trajectories.model import TrajectoryGroup

_LIMITS = {"threshold_down": "minimum_mean", "threshold_up": "maximum_mean", "std_threshold": "minimum_std"}


def has_variance(group: TrajectoryGroup) -> bool:
    """Whether the scores of a group differ."""
    scores = torch.tensor(group.scores)
    return bool(len(scores)) and zero_variance_filter(scores, [0] * len(scores)).kept == 1


def domain_filter(config: PromptKeys) -> Keep | None:
    """Return which groups of the domains are worth training on, ``None`` if all are."""
    rules = {domain: _rule(config, domain) for domain in config.rewards}
    if not any(rules.values()):
        return None

    def keep(group: TrajectoryGroup) -> bool:
        scores = torch.tensor(group.scores)
        return bool(len(scores)) and all(rule(scores) for rule in rules[group.domain])

    return keep


def _rule(config: PromptKeys, domain: str) -> list[Callable[[torch.Tensor], bool]]:
    """Return the conditions on the scores of a group of ``domain``."""
    rules: list[Callable[[torch.Tensor], bool]] = []
    if config.dynamic_sampling.enable:
        rules.append(lambda scores: zero_variance_filter(scores, [0] * len(scores)).kept == 1)
    chosen = config.rewards[domain].query_filter_config
    if chosen.type != "no_filter":
        limits = {_LIMITS[name]: value for name, value in chosen.filter_args.items()}
        rules.append(lambda scores: mean_std_filter(scores, [0] * len(scores), **limits).kept == 1)
    return rules
