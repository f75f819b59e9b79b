"""Whether episodes run, end, and can be won."""

from __future__ import annotations

from typing import Any

from roll.certificates.checks.finding import Question, check, percent
from roll.certificates.checks.seeds import difference, leaks
from roll.certificates.evidence import Evidence
from roll.certificates.records import Finding

ALREADY_A_CHECK = ("contract", "gymnasium", "odd_texts", "together", "memory")
"""Probes whose loss a check of their own reports."""


def _played(evidence: Evidence) -> list[dict[str, Any]]:
    """Return the episodes of all scripted policies."""
    return [item for results in evidence.value("policies")["results"].values() for item in results]


@check("episodes.run", "Episodes run without an exception, a crash or a hang")
def run(evidence: Evidence, question: Question) -> Finding:
    """Whether random play gets through."""
    lost = [name for name, outcome in evidence.outcomes.items() if outcome.value is None]
    if evidence.value("play") is not None:
        lost = [name for name in lost if name not in ("gymnasium", "odd_texts")]
    fix = "An environment that fails costs its episodes; one that ends the process costs all that are played there."
    if lost:
        outcome = evidence.outcomes[lost[0]]
        return question.failed(f"{outcome.raised}: {outcome.lost}." if outcome.raised else f"{outcome.lost}.", fix)
    episodes = evidence.episodes("play")
    failed = [episode for episode in episodes if episode.ended == "failed"]
    if failed:
        return question.failed(
            f"{len(failed)} of {len(episodes)} failed; seed {failed[0].seed}: {failed[0].error}.", fix
        )
    others = [item for item in _played(evidence) if item["error"]]
    if others:
        return question.failed(f"{len(others)} failed with a scripted policy: {others[0]['error']}.", fix)
    return question.passed(f"{len(episodes)} episodes of random play, and those of all scripted policies.")


@check("episodes.together", "Episodes that run at the same time do not affect one another", "play")
def together(evidence: Evidence, question: Question) -> Finding:
    """Whether episodes that run at the same time leave one another alone."""
    fix = (
        "Environments share something that changes: a class attribute, a module's variable, a file. Give each its own, "
        "or set use_thread_lock where only calls that overlap do harm."
    )
    if evidence.value("together") is None:
        return question.failed(f"{evidence.lost('together')}.", fix)
    if leaks(evidence):
        return question.skipped("Cannot be told: equal seeds differ in any case (seeds.process).")
    alone = evidence.episodes("play")
    in_turn = difference(alone, evidence.episodes("together", "in_turn"))
    if in_turn:
        return question.failed(f"Step by step in turn, in one thread: alone and together. {in_turn}", fix)
    threads = evidence.episodes("together", "threads")
    in_threads = difference(alone, threads)
    if in_threads:
        if not difference(alone, evidence.episodes("play", "again")) and _draws_from_shared(evidence):
            return question.skipped("Cannot be told: it draws from shared random generators (seeds.global_random).")
        return question.failed(f"In four threads: alone and together. {in_threads}", fix)
    how = "in turn and in four threads" if threads else "in turn; calls may not overlap (use_thread_lock)"
    return question.passed(f"{len(evidence.episodes('together', 'in_turn'))} episodes side by side, {how}.")


def _draws_from_shared(evidence: Evidence) -> bool:
    return bool(difference(evidence.episodes("play"), evidence.episodes("shared")))


@check("episodes.end", "Episodes end", "play", "policies")
def end(evidence: Evidence, question: Question) -> Finding:
    """Whether there is an end."""
    about = evidence.about
    played = _played(evidence)
    longest = max((item["steps"] for item in played), default=0)
    cut = [item for item in played if item["ended"] == "cut"]
    if not cut:
        return question.passed(f"All did by themselves, after {longest} steps at most.")
    if about["tag_max_steps"]:
        return question.passed(f"The tag's limit of {about['tag_max_steps']} steps ends them.")
    if about["max_steps"] is None:
        return question.failed(
            f"{len(cut)} of {len(played)} went on after {longest} steps, and no limit is set.",
            "Give max_steps to the environment, or to the tag (@register_env(…, max_steps=…)).",
        )
    if longest > about["max_steps"]:
        return question.failed(
            f"It says max_steps={about['max_steps']} and goes on after {longest} steps.",
            "Return truncated=True from the step that reaches the limit.",
        )
    return question.unsure(f"Its limit is {about['max_steps']} steps; they were given up after {longest}.")


@check("episodes.flags", "terminated says that the game is over, truncated that time is", "policies")
def flags(evidence: Evidence, question: Question) -> Finding:
    """Whether terminated and truncated are told apart."""
    played = _played(evidence)
    limit = evidence.limit
    won_early = [
        item
        for item in played
        if item["success"] and item["ended"] == "truncated" and (limit is None or item["steps"] < limit)
    ]
    if won_early:
        return question.failed(
            f"{len(won_early)} episodes were solved before the limit and ended with truncated.",
            "An episode that reaches its goal is terminated; truncated is for the step limit.",
        )
    at_limit = [item for item in played if item["steps"] == limit and not item["success"]]
    early = [item for item in played if limit and item["steps"] < limit and item["ended"] == "terminated"]
    silent = [item for item in evidence.value("policies")["results"]["silent"] if item["steps"] == limit]
    ended = {item["ended"] for item in at_limit}
    if limit and limit > 1 and early and silent and ended == {"terminated"}:
        return question.failed(
            f"All {len(at_limit)} episodes that reached the limit of {limit} steps unsolved ended with terminated.",
            "Return truncated=True, terminated=False where only the step limit ends an episode; what is cut off may "
            "still be worth something.",
        )
    return question.passed("Episodes end with terminated when they are decided, with truncated at the limit.")


@check("episodes.final", "A step after the end earns nothing", "endings")
def final(evidence: Evidence, question: Question) -> Finding:
    """Whether the end is one."""
    after = evidence.value("endings")["after"]
    paid = [item for item in after if item["reward"] > 0]
    if paid:
        return question.failed(
            f"After the end of seed {paid[0]['seed']} one more step earned {paid[0]['reward']:g}.",
            "Raise an error in a step without a running episode (TextEnv does).",
        )
    if not after:
        return question.skipped("No episode ended by itself.")
    raised = sorted({item["raised"] for item in after if item["raised"]})
    return question.passed(f"It raises {raised[0]}." if raised else "It earned nothing.")


@check("episodes.solvable", "Episodes can be solved", "policies")
def solvable(evidence: Evidence, question: Question) -> Finding:
    """Whether somebody could succeed."""
    if evidence.value("solutions"):
        return _by_solutions(evidence, question)
    played = _played(evidence)
    told = [item for item in played if item["success"] is not None]
    if not told:
        return question.skipped("It does not report success: info['metrics']['success'].")
    solved = sum(item["success"] > 0 for item in told)
    if solved:
        return question.passed(f"{solved} of {len(told)} episodes of scripted policies succeeded.")
    explored = (evidence.value("explore") or {"explored": []})["explored"]
    ways = [item for item in explored if item["solved"]]
    if ways:
        return question.passed(
            f"Scripted policies never succeeded; with seed {ways[0]['seed']}, {ways[0]['solved']} actions do."
        )
    fix = "Check that success can be reached within the step limit, and that Outcome(success=True) reports it."
    if explored and all(item["complete"] for item in explored):
        count = sum(item["reached"] for item in explored)
        return question.failed(
            f"None of {len(told)} episodes succeeded, and none of the {count} states that actions lead to from "
            f"{len(explored)} starts is a success.",
            fix,
        )
    return question.unsure(
        f"None of {len(told)} episodes of scripted policies succeeded. Give solution() to have it decided.", fix
    )


def _by_solutions(evidence: Evidence, question: Question) -> Finding:
    found = evidence.value("solutions")["solutions"]
    solved = [item for item in found if item["success"] > 0]
    if not solved:
        return question.failed(
            f"What solution() gives solves none of {len(found)} episodes within {evidence.limit} steps.",
            "Check solution(), the step limit, and that Outcome(success=True) reports success.",
        )
    if len(solved) < len(found):
        lost = next(item["seed"] for item in found if not item["success"] > 0)
        return question.unsure(
            f"solution() solves {percent(len(solved) / len(found))} of {len(found)} episodes within "
            f"{evidence.limit} steps; not seed {lost}.",
            "A longer limit (max_steps) or easier levels would make all of them solvable.",
        )
    return question.passed(f"solution() solves all of {len(found)} episodes.")


CHECKS = (run, together, end, flags, final, solvable)
