"""From an environment to its certificate."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from roll import __version__
from roll.certificates.checks import judge
from roll.certificates.checks.policies import results
from roll.certificates.children import Children
from roll.certificates.evidence import Progress, gather
from roll.certificates.learning import judge_training, train
from roll.certificates.records import Certificate, Effort, Status
from roll.certificates.target import Target


@dataclass(frozen=True, slots=True)
class Measurements:
    """What differs from one measurement to the next, and is no part of a certificate.

    Attributes:
        steps_per_second: Steps of random play in one thread.
        kept_bytes_per_episode: Python memory that stays of an episode.
        resident_bytes_per_episode: The same for the whole process, as the system sees it.
        process_mib: Memory of the process after all episodes.
    """

    steps_per_second: float
    kept_bytes_per_episode: float
    resident_bytes_per_episode: float
    process_mib: float


def certify(
    target: Target, effort: Effort, children: Children, progress: Progress = lambda said: None
) -> tuple[Certificate, Measurements | None]:
    """Try an environment and judge it.

    Args:
        target: The environment.
        effort: How much is tried.
        children: The processes in which it is tried.
        progress: Told what is tried next.

    Returns:
        The certificate, the same every time; and what was measured, which is not. ``None``: nothing was.

    Raises:
        TargetError: There is no such environment, or it cannot be made.
    """
    evidence = gather(target, effort, children, progress)
    findings, training = judge(evidence), None
    fails = any(finding.status is Status.FAILED for finding in findings)
    if effort.learning_steps and not fails:
        progress(f"whether the toy policy learns it in {effort.learning_steps} steps")
        training = train(target, effort.learning_steps)
    why_not = "Nothing is trained on an environment that is not fit." if fails else "It was not asked for."
    certificate = Certificate(
        environment=target.name,
        findings=(*findings, judge_training(training, why_not)),
        policies=results(evidence),
        about={key: value for key, value in evidence.about.items() if key != "solution"},
        versions=_versions(),
        effort=effort,
        learning=training.rewards if training else (),
    )
    return certificate, _measurements(evidence.value("memory"))


def _measurements(seen: Mapping[str, Any] | None) -> Measurements | None:
    if seen is None:
        return None
    return Measurements(
        steps_per_second=seen["steps_per_second"],
        kept_bytes_per_episode=seen["kept_per_episode"],
        resident_bytes_per_episode=seen["resident_per_episode"],
        process_mib=seen["process_mib"],
    )


def _versions() -> dict[str, str]:
    return {
        "roll": __version__,
        "gymnasium": version("gymnasium"),
        "numpy": version("numpy"),
        "python": platform.python_version(),
    }
