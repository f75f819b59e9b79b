"""Rewards of a group as a whole: what a member is worth beside the others."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from roll.common.registry import Registry
from roll.config.errors import choose_from
from roll.config.grading_keys import VerifierConfig
from roll.rewards.worker_main import describe
from roll.trajectories.model import Status, Trajectory

GroupReward = Callable[..., Sequence[float] | Awaitable[Sequence[float]]]
"""Called with the members of a group that did not break, by episode number, and its options as keywords. Returns one
number for each."""

Registered = TypeVar("Registered", bound=GroupReward)

GROUP_REWARDS: Registry[GroupReward] = Registry(
    "group reward",
    advice="To add your own, decorate it with @register_group_reward({name!r}) and name its module in reward_modules.",
)


def register_group_reward(name: str) -> Callable[[Registered], Registered]:
    """Register a function that rewards the members of a group by comparing them.

    For instance::

        @register_group_reward("shortest")
        def shortest(members, *, bonus=1.0):
            least = min(member.completion_tokens for member in members)
            return [bonus * (member.completion_tokens == least) for member in members]

    It is called in the event loop: one that takes long is a coroutine function that awaits a thread or a service.

    Args:
        name: The name for ``group_reward``.

    Raises:
        DuplicateNameError: Another one has this name.
    """

    def decorate(function: Registered) -> Registered:
        GROUP_REWARDS.add(name, function, definition=function)
        return function

    return decorate


@register_group_reward("distinct")
def distinct(members: Sequence[Trajectory]) -> list[float]:
    """Return for each member the share of the others that acted or answered differently, from 0 to 1."""
    said = [tuple(turn.action or turn.response for turn in member.turns) for member in members]
    same = Counter(said)
    others = max(len(members) - 1, 1)
    return [(len(members) - same[one]) / others for one in said]


@dataclass(frozen=True, slots=True)
class _Term:
    name: str
    weight: float
    function: GroupReward
    options: Mapping[str, Any]


class GroupRubric:
    """Adds rewards of whole groups to the scores of their members.

    Args:
        configured: Weights and options by name.

    Raises:
        UnknownNameError: There is no such group reward.
        ValueError: An option is unknown.
    """

    def __init__(self, configured: Mapping[str, VerifierConfig]) -> None:
        self._terms = [
            _Term(name, one.weight, _checked(name, one.options), one.options) for name, one in configured.items()
        ]

    async def grade(self, members: Sequence[Trajectory]) -> None:
        """Add to score and last reward of every member that did not break.

        Where a function raises, or does not return a number for each, none of them has a score.
        """
        sound = [member for member in members if not member.status.is_error and member.turns]
        for term in self._terms if sound else ():
            try:
                numbers = await _numbers(term, sound)
            except Exception as error:  # the user's code: its failure is a result here, with its place
                for member in sound:
                    refuse(member, f"group reward {term.name}: {describe(error)}")
                return
            for member, number in zip(sound, numbers, strict=True):
                add(member, {term.name: term.weight * number}, {term.name: number})


async def _numbers(term: _Term, members: Sequence[Trajectory]) -> list[float]:
    """Return what a group reward says of each member.

    Raises:
        ValueError: If it does not return a number for each.
    """
    given = term.function(members, **term.options)
    numbers = [float(number) for number in (await given if inspect.isawaitable(given) else given)]
    if len(numbers) != len(members):
        raise ValueError(f"it returned {len(numbers)} numbers for {len(members)} members")
    return numbers


def add(member: Trajectory, parts: Mapping[str, float], raw: Mapping[str, float]) -> None:
    """Add weighted rewards to the score of a trajectory and to the reward of its last turn.

    Args:
        member: The trajectory; it has turns.
        parts: What to add, by name.
        raw: What to report as its metrics.
    """
    last = member.turns[-1]
    total = sum(parts.values())
    member.score = (member.score or 0.0) + total
    last.reward += total
    for name, value in parts.items():
        last.reward_parts[name] = last.reward_parts.get(name, 0.0) + value
    member.metrics.update(raw)


def refuse(member: Trajectory, error: str) -> None:
    """Take the score from a trajectory that could not be graded."""
    member.status, member.score = Status.ERROR_REWARD, None
    member.error = f"{member.group_id}/{member.episode}: {error}"


def _checked(name: str, options: Mapping[str, Any]) -> GroupReward:
    function = GROUP_REWARDS.get(name)
    known = list(inspect.signature(function).parameters)[1:]
    for option in options:
        if option not in known:
            advice = choose_from(option, known) if known else "it has none."
            raise ValueError(f"group reward {name!r} has no option {option!r}: {advice}")
    return function
