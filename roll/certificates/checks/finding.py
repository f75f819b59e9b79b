"""How a check says what it found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps

from roll.certificates.evidence import Evidence
from roll.certificates.records import Finding, Status


@dataclass(frozen=True, slots=True)
class Question:
    """What a check asks.

    Attributes:
        check: Name of the check.
        text: A statement that is true of a sound environment.
    """

    check: str
    text: str

    def passed(self, seen: str) -> Finding:
        """The statement is true."""
        return Finding(self.check, self.text, Status.PASSED, seen)

    def failed(self, seen: str, fix: str) -> Finding:
        """The statement is false."""
        return Finding(self.check, self.text, Status.FAILED, seen, fix)

    def unsure(self, seen: str, fix: str = "") -> Finding:
        """The statement may be true, or matters little."""
        return Finding(self.check, self.text, Status.UNSURE, seen, fix)

    def skipped(self, why: str) -> Finding:
        """The question could not be asked."""
        return Finding(self.check, self.text, Status.NOT_APPLICABLE, why)

    def without(self, evidence: Evidence, *probes: str) -> Finding | None:
        """Return that the question could not be asked, if one of these probes returned nothing."""
        lost = next((probe for probe in probes if evidence.value(probe) is None), None)
        return None if lost is None else self.skipped(f"Could not be tried: {evidence.lost(lost)}.")


def check(
    name: str, text: str, *probes: str
) -> Callable[[Callable[[Evidence, Question], Finding]], Callable[[Evidence], Finding]]:
    """Make a check of a function that answers a question; it is not asked where one of the probes returned nothing.

    Args:
        name: Name of the check.
        text: A statement that is true of a sound environment.
        probes: What the answer is read from.
    """
    question = Question(name, text)

    def decorate(answer: Callable[[Evidence, Question], Finding]) -> Callable[[Evidence], Finding]:
        @wraps(answer)
        def judged(evidence: Evidence) -> Finding:
            missing = question.without(evidence, *probes)
            return answer(evidence, question) if missing is None else missing

        return judged

    return decorate


def percent(share: float) -> str:
    """Return a share in words."""
    return f"{share:.0%}"


def figure(number: float) -> str:
    """Return a number, short."""
    return f"{number:.3g}" if number else "0"
