"""What the environment makes of text, and what it costs."""

from __future__ import annotations

from roll.certificates.checks.finding import Question, check
from roll.certificates.evidence import Evidence
from roll.certificates.policies import ODD_TEXTS
from roll.certificates.records import Finding

LONG_OBSERVATION = 16_000
"""Characters: some 4,000 tokens in a single turn."""

LEAK = 32 * 1024
"""Bytes that may stay of an episode."""


@check("text.odd", "Any text is survived as an answer")
def odd(evidence: Evidence, question: Question) -> Finding:
    """Whether it survives any answer."""
    if evidence.value("odd_texts") is None:
        return question.failed(f"{evidence.lost('odd_texts')}.", "A model will say it some day: treat it as no action.")
    problems = evidence.value("odd_texts")["problems"]
    if problems:
        return question.failed(
            f"{len(problems)} of {len(ODD_TEXTS)} made it fail: {problems[0]}.",
            "Catch what parsing raises, and treat such an answer as no action.",
        )
    return question.passed(f"{len(ODD_TEXTS)} texts, bare and as an action: empty, huge, zero bytes, braces, emoji.")


@check("text.size", "Observations do not grow without end", "policies")
def size(evidence: Evidence, question: Question) -> Finding:
    """Whether observations stay short."""
    plain = {
        name: items for name, items in evidence.value("policies")["results"].items() if "a huge answer" not in name
    }
    sizes = [item["sizes"] for items in plain.values() for item in items]
    longest = max((max(each) for each in sizes), default=0)
    fix = "Show what is new: the conversation holds the earlier observations already."
    if longest > LONG_OBSERVATION:
        return question.failed(f"One had {longest} characters.", fix)
    growing = [each for each in sizes if len(each) >= 8 and all(a < b for a, b in zip(each, each[1:], strict=False))]
    worst = max(growing, key=lambda each: each[-1], default=[0])
    if worst[-1] > 2000 and worst[-1] > 4 * worst[0]:
        return question.failed(
            f"They grow in every step: {worst[0]} characters at first, {worst[-1]} after {len(worst) - 1} steps.", fix
        )
    return question.passed(f"The longest had {longest} characters.")


@check("costs.memory", "An episode leaves nothing behind in memory")
def memory(evidence: Evidence, question: Question) -> Finding:
    """Whether episodes leave something behind."""
    if "memory" not in evidence.outcomes:
        return question.skipped("Only certify measures it.")
    missing = question.without(evidence, "memory")
    if missing is not None:
        return missing
    seen = evidence.value("memory")
    if seen["kept_per_episode"] > LEAK or seen["resident_per_episode"] > 32 * LEAK:
        # No figure: it would differ from one measurement to the next.
        return question.failed(
            f"Every episode leaves more than {LEAK // 1024} KiB behind.",
            "Something keeps what episodes made: a list or cache of the class, a module, or a callback.",
        )
    return question.passed(f"Less than {LEAK // 1024} KiB per episode.")


CHECKS = (odd, size, memory)
