"""Which groups of a store are given out first: functions of what a store knows of a group, and of nothing else."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from roll.common.registry import Registry


@dataclass(frozen=True, slots=True)
class Known:
    """What a store knows of a group that may be given out.

    Attributes:
        number: Its number in the store; they grow in the order in which groups came in.
        policy_version: The weights that sampled it.
        step: The step that asks for groups.
        uses: How often this reader was given it.
        mean_score: Mean score of its members, without those that broke; 0 where none is sound.
        score_spread: Mean distance of their scores from that: the mean of ``|advantage|`` where scores are compared
            within a group and not scaled.
        success_rate: Share of them that succeeded.
    """

    number: int
    policy_version: int
    step: int
    uses: int
    mean_score: float
    score_spread: float
    success_rate: float

    @property
    def age(self) -> int:
        """Versions that it is behind the weights that the step trains."""
        return self.step - 1 - self.policy_version


Priority = Callable[[Known], float]
"""Says how much a group is wanted. Of equal ones those come first that were given out least often, then the older."""

Registered = TypeVar("Registered", bound=Callable[..., float])

PRIORITIES: Registry[Callable[..., float]] = Registry(
    "priority",
    advice="To add your own, decorate it with @register_priority({name!r}) and name its module in algorithm_modules.",
)


def register_priority(name: str) -> Callable[[Registered], Registered]:
    """Register a function of what a store knows of a group; the greatest number comes first.

    Its other parameters are its options. It must depend on nothing else, so that a run repeats::

        @register_priority("best")
        def best(group, *, decay=0.0):
            return group.mean_score - decay * group.uses

    Args:
        name: The name for ``experience.priority``.

    Raises:
        DuplicateNameError: Another one has this name.
    """

    def decorate(function: Registered) -> Registered:
        PRIORITIES.add(name, function, definition=function)
        return function

    return decorate


def priority_of(name: str, options: Mapping[str, Any]) -> Priority:
    """Return the priority of a name with its options.

    Raises:
        UnknownNameError: There is none of this name.
        ValueError: It does not have one of the options, or needs one that is missing.
    """
    function = PRIORITIES.get(name)
    try:
        inspect.signature(function).bind(None, **options)
    except TypeError as error:
        known = ", ".join(list(inspect.signature(function).parameters)[1:]) or "none"
        raise ValueError(
            f"the priority {name!r} cannot be given {dict(options)}: {error}. Its options: {known}"
        ) from error
    return partial(function, **options) if options else function


@register_priority("least_used")
def least_used(group: Known) -> float:
    """Those that were given out least often: every group in turn."""
    return -float(group.uses)


@register_priority("linear_decay")
def linear_decay(group: Known, *, decay: float = 2.0) -> float:
    """The newest, as if each use made a group ``decay`` versions older."""
    return group.policy_version - decay * group.uses


@register_priority("staleness")
def staleness(group: Known) -> float:
    """Those whose weights are the least versions behind."""
    return -float(group.age)


@register_priority("advantage")
def advantage(group: Known) -> float:
    """Those that teach most: whose scores are far from their mean. After prioritized replay, with |advantage| as error.

    Schaul et al., "Prioritized Experience Replay", https://arxiv.org/abs/1511.05952, order by |TD error|.
    """
    return group.score_spread


@register_priority("success_balanced")
def success_balanced(group: Known, *, target: float = 0.5) -> float:
    """Those whose share of successes is nearest to ``target``: neither too easy nor too hard."""
    return -abs(group.success_rate - target)


LEAST_USED: Final[Priority] = least_used
