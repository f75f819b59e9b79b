"""The checks of a certificate: pure functions of what the probes saw."""

from __future__ import annotations

from collections.abc import Callable

from roll.certificates.checks import contract, episodes, policies, rewards, seeds, text
from roll.certificates.evidence import Evidence
from roll.certificates.records import Finding, Status

CHECKS: tuple[Callable[[Evidence], Finding], ...] = (
    *contract.CHECKS,
    *seeds.CHECKS,
    *episodes.CHECKS,
    *rewards.CHECKS,
    *policies.CHECKS,
    *text.CHECKS,
)
"""All of them, in the order of the report."""


def judge(evidence: Evidence) -> tuple[Finding, ...]:
    """Return the findings of all checks."""
    return tuple(check(evidence) for check in CHECKS)


__all__ = ["CHECKS", "Finding", "Status", "judge"]
