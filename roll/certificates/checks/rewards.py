"""Whether rewards are numbers to learn from."""

from __future__ import annotations

import math
from typing import Any

from roll.certificates.checks.finding import Question, check, figure, percent
from roll.certificates.evidence import Evidence
from roll.certificates.records import Finding

LARGE = 1e4
"""A reward of one step beyond this is a mistake, or wants to be scaled."""

_QUARTERS = 4


def _played(evidence: Evidence) -> list[dict[str, Any]]:
    return [item for results in evidence.value("policies")["results"].values() for item in results]


@check("rewards.finite", "Rewards are finite numbers", "policies")
def finite(evidence: Evidence, question: Question) -> Finding:
    """Whether each is a number."""
    rewards = [reward for item in _played(evidence) for reward in item["rewards"]]
    if not rewards:
        return question.skipped("No step returned a reward.")
    wrong = [reward for reward in rewards if not math.isfinite(reward)]
    if wrong:
        return question.failed(
            f"{len(wrong)} of {len(rewards)} rewards are {wrong[0]}.",
            "Find the division or logarithm; a single one ends the episode, and would spoil the whole update.",
        )
    return question.passed(f"{len(rewards)} rewards, from {figure(min(rewards))} to {figure(max(rewards))}.")


@check("rewards.bounded", "Rewards stay within bounds, however long an episode", "policies")
def bounded(evidence: Evidence, question: Question) -> Finding:
    """Whether they stay within bounds."""
    played = [item for item in _played(evidence) if all(math.isfinite(reward) for reward in item["rewards"])]
    largest = max((abs(reward) for item in played for reward in item["rewards"]), default=0.0)
    if largest > LARGE:
        return question.failed(f"A step earned {figure(largest)}.", "Scale rewards to a few units per episode.")
    growing = [item["rewards"] for item in played if _grows(item["rewards"])]
    long = [item for item in played if len(item["rewards"]) >= 4 * _QUARTERS]
    if growing and len(growing) >= len(long) / 2:
        return question.failed(
            f"They grow with every step: {figure(growing[0][0])} in the first, {figure(growing[0][-1])} in step "
            f"{len(growing[0])}.",
            "Reward what a step has changed, not how far the episode is.",
        )
    return question.passed(f"No step earned more than {figure(largest)} in absolute value, and none more with time.")


def _grows(rewards: list[float]) -> bool:
    """Whether each quarter of an episode pays more than the one before, and the last much more than the first."""
    size = len(rewards) // _QUARTERS
    if size < 4:
        return False
    quarters = [max(abs(reward) for reward in rewards[size * i : size * (i + 1)]) for i in range(_QUARTERS)]
    rising = all(before < after for before, after in zip(quarters, quarters[1:], strict=False))
    return rising and quarters[-1] > 2 * quarters[0] and quarters[-1] > 2.0


@check("rewards.signal", "What the policy does makes a difference to the reward", "policies")
def signal(evidence: Evidence, question: Question) -> Finding:
    """Whether what one does makes a difference."""
    by_seed: dict[int, set[float]] = {}
    for item in _played(evidence):
        if not item["error"]:
            by_seed.setdefault(item["seed"], set()).add(round(item["score"], 9))
    for item in (evidence.value("solutions") or {"solutions": ()})["solutions"]:
        if item["known"]:
            by_seed.setdefault(item["seed"], set()).add(round(item["score"], 9))
    if not by_seed:
        return question.skipped("No episode came to an end.")
    different = sum(len(scores) > 1 for scores in by_seed.values())
    if different:
        return question.passed(f"Policies earned different scores in {different} of {len(by_seed)} levels.")
    score = figure(next(iter(next(iter(by_seed.values())))))
    seen = f"Every policy earned the same in every level ({score})."
    ways = [item for item in (evidence.value("explore") or {"explored": ()})["explored"] if item["solved"]]
    if ways and not any(item["success"] for item in _played(evidence)):
        return question.unsure(
            f"{seen} Yet {ways[0]['solved']} actions in a row succeed with seed {ways[0]['seed']}.",
            "Reward progress, or begin with easier levels: play at random hardly ever finds that.",
        )
    if (
        not evidence.about["actions"]
        and not evidence.value("solutions")
        and not any(score > 0 for scores in by_seed.values() for score in scores)
    ):
        return question.unsure(
            f"{seen} None knows the right answers, since actions are free text. Give solution() to have it decided."
        )
    return question.failed(seen, "Nothing can be learnt: the reward must depend on the answer.")


@check("groups.variance", "Members of a group that play at random earn different scores", "policies")
def variance(evidence: Evidence, question: Question) -> Finding:
    """How many groups teach something."""
    groups = [group for group in evidence.value("policies")["groups"] if group]
    if not groups:
        return question.skipped("No group came to an end.")
    flat = sum(len(set(group)) == 1 for group in groups)
    seen = f"{percent(flat / len(groups))} of {len(groups)} groups of {len(groups[0])} have no variance."
    if flat == len(groups):
        return question.unsure(
            f"{seen} A policy that plays at random learns nothing from them.",
            "Begin with easier levels, reward progress, or begin with a policy that sometimes succeeds.",
        )
    return question.passed(seen)


CHECKS = (finite, bounded, signal, variance)
