"""What scripted policies earn, and whether one that does not play beats one that does."""

from __future__ import annotations

from math import isfinite, sqrt
from statistics import fmean, pstdev
from typing import Any

from roll.certificates.checks.finding import Question, check, figure, percent
from roll.certificates.evidence import Evidence
from roll.certificates.records import Finding, PolicyResult

ALWAYS_WINS = 0.95
"""Share of episodes from which one and the same answer is said to win always."""


def results(evidence: Evidence) -> tuple[PolicyResult, ...]:
    """Return what each policy earned, in episodes that did not fail."""
    table = []
    for name, items in (evidence.value("policies") or {"results": {}})["results"].items():
        played = [item for item in items if not item["error"] and isfinite(item["score"])]
        if not played:
            continue
        steps = sum(item["steps"] for item in played)
        told = [item["success"] for item in played if item["success"] is not None]
        valid = [item["valid"] for item in played if item["valid"] is not None]
        table.append(
            PolicyResult(
                policy=name,
                episodes=len(played),
                mean_score=fmean(item["score"] for item in played),
                success=fmean(told) if told else None,
                valid=sum(valid) / steps if valid and steps else None,
                mean_steps=steps / len(played),
            )
        )
    return tuple(table)


@check("policies.silence", "Silence earns less than play")
def silence(evidence: Evidence, question: Question) -> Finding:
    """Whether to say nothing pays."""
    return _beaten(evidence, question, ["silent"])


@check("policies.rubbish", "Rubbish earns less than play")
def rubbish(evidence: Evidence, question: Question) -> Finding:
    """Whether to talk rubbish pays."""
    return _beaten(evidence, question, ["rubbish"])


def _beaten(evidence: Evidence, question: Question, names: list[str]) -> Finding:
    """Compare policies that do not play with the one that plays at random."""
    missing = question.without(evidence, "policies")
    if missing is not None:
        return missing
    table = {result.policy: result for result in results(evidence)}
    idle = [table[name] for name in names if name in table]
    if "random" not in table or not idle:
        return question.skipped("No episode came to an end.")
    best, play = max(idle, key=lambda result: result.mean_score), table["random"]
    seen = f"{best.policy} earned {figure(best.mean_score)} per episode, random play {figure(play.mean_score)}."
    fix = (
        "Let a response without an action cost what the worst action costs (worst_reward of TextEnv, idle()), so that "
        "the policy does not learn to say nothing."
    )
    if best.success:
        return question.failed(f"{seen} It succeeded in {percent(best.success)} of its episodes.", fix)
    if best.mean_score > play.mean_score + 2 * _error(evidence) + 1e-9:
        if not evidence.about["actions"] and best.mean_score <= 0:
            return question.unsure(f"{seen} Actions are free text, so that random play is hardly play.")
        return question.failed(seen, fix)
    if best.mean_score >= play.mean_score - 1e-9:
        return question.unsure(f"{seen} That is no reason to play.")
    return question.passed(seen)


def _error(evidence: Evidence) -> float:
    """Return the standard error of what random play earns, from the means of its groups."""
    groups = [fmean(group) for group in evidence.value("policies")["groups"] if group]
    return pstdev(groups) / sqrt(len(groups)) if groups else 0.0


@check("policies.repetition", "One and the same answer does not always win", "policies")
def repetition(evidence: Evidence, question: Question) -> Finding:
    """Whether one answer is always right."""
    table = [result for result in results(evidence) if result.policy.startswith("always ")]
    if not table:
        return question.skipped("Actions are free text.")
    best = max(table, key=lambda result: (result.success or 0.0, result.mean_score))
    seen = f"The best is {best.policy!r}: {figure(best.mean_score)} per episode"
    if best.success is None:
        return question.passed(f"{seen}.")
    seen += f", success in {percent(best.success)}."
    if best.success >= ALWAYS_WINS:
        return question.unsure(seen, "A policy will learn that answer and nothing else: vary the levels.")
    return question.passed(seen)


@check("policies.injection", "Special tokens, orders to the grader and huge answers earn nothing", "policies")
def injection(evidence: Evidence, question: Question) -> Finding:
    """Whether it pays to claim something."""
    recorded: dict[str, list[dict[str, Any]]] = evidence.value("policies")["results"]
    silent = recorded["silent"]
    for name, items in recorded.items():
        if name.startswith("only "):
            # A text in which the environment finds one of its actions by accident is play.
            items = [item for item in items if not (evidence.about["actions"] and item["valid"])]
            better = _better(items, silent) and _better(items, recorded["rubbish"])
        elif name.startswith("random, with "):
            better = _better(items, [item for item in recorded["random"] if not item["error"]])
        else:
            continue
        if better:
            return question.failed(
                f"{name!r} {better}.",
                "Grade the action alone: find it with a strict pattern, and never show the rest to what grades.",
            )
    return question.passed(f"None of {sum(name.startswith('only ') for name in recorded)} attempts earned more for it.")


def _better(items: list[dict[str, Any]], plain: list[dict[str, Any]]) -> str:
    """Say by how much cheating episodes beat honest ones of the same seeds; empty where they do not, on average."""
    honest: dict[int, float] = {}
    for item in plain:
        honest.setdefault(item["seed"], item["score"])  # of a group the first member, who drew the same actions
    gains = [item["score"] - honest[item["seed"]] for item in items if not item["error"] and item["seed"] in honest]
    gains = [gain for gain in gains if isfinite(gain)]
    if not gains or fmean(gains) <= 1e-9 or min(gains) < -1e-9:
        return ""
    return f"earned {figure(fmean(gains))} more per episode than the same without it"


CHECKS = (silence, rubbish, repetition, injection)
