"""What the probes saw of an environment, and the order in which they are run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from roll.certificates.children import HASH_SEEDS, Children, Outcome
from roll.certificates.episodes import Episode
from roll.certificates.records import Effort
from roll.certificates.target import Target, TargetError

Progress = Callable[[str], None]
"""Told in words what is tried next."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen.

    Attributes:
        about: What the environment is; see :func:`roll.certificates.probes.describe`.
        outcomes: Outcome of each probe that was run, by name.
    """

    about: Mapping[str, Any]
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)

    def value(self, probe: str) -> Any:
        """Return what a probe returned; ``None`` where it did not, or was not run."""
        return self.outcomes[probe].value if probe in self.outcomes else None

    def lost(self, probe: str) -> str:
        """Return why a probe returned nothing."""
        return self.outcomes[probe].lost if probe in self.outcomes else "it was not tried"

    def episodes(self, probe: str, part: str = "episodes") -> list[Episode]:
        """Return episodes that a probe returned."""
        return [Episode.of(record) for record in (self.value(probe) or {}).get(part, ())]

    @property
    def limit(self) -> int | None:
        """Steps of an episode, as the tag or the environment says."""
        limit: int | None = self.about["tag_max_steps"] or self.about["max_steps"]
        return limit


def gather(target: Target, effort: Effort, children: Children, progress: Progress) -> Evidence:
    """Run the probes.

    Args:
        target: The environment.
        effort: How much is tried.
        children: Where.
        progress: Told what is tried.

    Raises:
        TargetError: There is no such environment, or it cannot be made.
    """
    progress("what it is")
    seconds = max(effort.call_seconds, 60.0)
    described = children.run("describe", target, {}, call_seconds=seconds, hash_seed=HASH_SEEDS[1])
    if described.value is None:
        raise TargetError(described.lost if described.raised == "TargetError" else _unusable(target, described))
    children.prepare(target, described.value.pop("imported"))
    evidence = Evidence(described.value)
    outcomes: dict[str, Outcome] = {}
    for name, said, probe, arguments, hash_seed in _plan(evidence, effort):
        progress(said)
        outcomes[name] = children.run(probe, target, arguments, call_seconds=effort.call_seconds, hash_seed=hash_seed)
    return Evidence(described.value, outcomes)


def _unusable(target: Target, outcome: Outcome) -> str:
    what = f"{outcome.raised}: {outcome.lost}" if outcome.raised else outcome.lost
    return f"{target.name} cannot be made and reset: {what}"


def _plan(evidence: Evidence, effort: Effort) -> list[tuple[str, str, str, dict[str, Any], str]]:
    """Return (name, words, probe, arguments, hash seed) of each probe."""
    about, limit = evidence.about, evidence.limit
    # One step more than the environment promises; what a tag limits, training cuts there.
    longest = min(about["tag_max_steps"] or (about["max_steps"] or effort.longest) + 1, effort.longest)
    seconds = effort.probe_seconds
    many = {"seeds": effort.seeds, "longest": longest, "seconds": seconds}
    few = {"seeds": min(effort.seeds, 8), "longest": longest}
    same, other = HASH_SEEDS
    plan: list[tuple[str, str, str, dict[str, Any], str]] = [
        ("contract", "what reset and step return", "contract", {"longest": longest}, same),
        ("play", "random play", "play", {**many, "again": True}, same),
        ("process", "the same in another process", "play", many, same),
        ("hash", "the same with another hash seed", "play", many, other),
        ("shared", "the same with other shared random generators", "play", {**many, "shared": 2}, same),
        ("clock", "the same on another day", "play", {**many, "clock": True}, other),
        ("reuse", "the same in a used environment", "reuse", {**few, "seconds": seconds}, same),
        (
            "together",
            "the same side by side",
            "together",
            {**few, "threads": 0 if about["use_thread_lock"] else 4, "seconds": seconds},
            same,
        ),
        ("starts", "how groups begin", "starts", {"seeds": few["seeds"], "members": effort.members}, same),
        (
            "policies",
            "scripted policies",
            "policies",
            {**many, "groups": effort.groups, "members": effort.members},
            same,
        ),
        ("endings", "steps after the end", "endings", few, same),
        ("odd_texts", "odd texts", "odd_texts", {}, same),
    ]
    if not about["awaits"]:
        plan.insert(1, ("gymnasium", "Gymnasium's checker", "gymnasium", {}, same))
    if about["solution"]:
        plan.append(("solutions", "its own solutions", "solutions", {"seeds": effort.seeds, "longest": longest}, same))
    if about["actions"]:
        arguments = {"seeds": 2, "longest": limit or longest, "steps": effort.explored_steps}
        plan.append(("explore", "ways to succeed", "explore", arguments, same))
    if effort.memory_episodes:
        arguments = {"episodes": effort.memory_episodes, "longest": longest}
        plan.append(("memory", "memory and speed", "memory", arguments, same))
    return plan
