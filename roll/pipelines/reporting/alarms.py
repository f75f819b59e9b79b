"""What goes wrong in a run while it runs, in words: errors, groups that teach nothing, drift, age, lost exploration."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from roll.pipelines.reporting.silence import WINDOW, SilenceWatch

Metrics = Mapping[str, float]
Alarm = Callable[[Sequence[Metrics], Sequence[Metrics], Sequence[Metrics]], str | None]
"""Of the first steps, those before the latest, and the latest ones: what is wrong, or ``None``."""

_ERRORS: Final = ("error_env", "error_timeout", "error_unavailable", "error_reward")
_SOLVED: Final = 0.9
_READ: Final = frozenset(
    {
        *(f"rollout/status/{kind}" for kind in _ERRORS),
        "rollout/zero_variance_groups",
        "rollout/success",
        "rollout/staleness/mean",
        "sampler/log_prob_difference_mean",
        "train/policy/entropy",
    }
)
"""What alarms read; nothing else is remembered."""


class Alarms:
    """Reads the metrics of each step, and says what goes wrong when it begins to.

    An alarm is said once, and again only after it was over in between. The first comes after two windows of steps.

    Args:
        state: What :meth:`state` returned, for a run that goes on.
    """

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        known = state or {}
        self._silence = SilenceWatch(known.get("silence"))
        self._first: list[Metrics] = list(known.get("first", ()))
        self._latest: deque[Metrics] = deque(known.get("latest", ()), maxlen=2 * WINDOW)
        self._held: set[str] = set(known.get("held", ()))
        self._given: set[str] = set(known.get("given", ()))

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must remember, as JSON."""
        return {
            "silence": self._silence.state(),
            "first": self._first,
            "latest": list(self._latest),
            "held": sorted(self._held),
            "given": sorted(self._given),
        }

    def metrics(self) -> dict[str, float]:
        """Return of every alarm that was ever given whether it holds now: 1, or 0."""
        return {f"alarm/{name}": float(name in self._held) for name in sorted(self._given)}

    def step(self, metrics: Metrics) -> list[str]:
        """Take note of a step; return what is to be said of it.

        Args:
            metrics: Those of a training step; an alarm whose metrics a run does not have is never given.
        """
        silent = self._silence.step(metrics)
        said = [] if silent is None else [silent]
        read = {name: value for name, value in metrics.items() if name in _READ and math.isfinite(value)}
        if len(self._first) < WINDOW:
            self._first.append(read)
        self._latest.append(read)
        if len(self._latest) < 2 * WINDOW:
            return said
        before, latest = list(self._latest)[:WINDOW], list(self._latest)[WINDOW:]
        for name, alarm in ALARMS.items():
            words = alarm(self._first, before, latest)
            if words is None:
                self._held.discard(name)
            elif name not in self._held:
                self._held.add(name)
                self._given.add(name)
                said.append(words)
        return said


def _mean(steps: Sequence[Metrics], name: str) -> float | None:
    """Return the mean of a metric; ``None`` where a step does not have it."""
    return fmean(step[name] for step in steps) if all(name in step for step in steps) else None


def _grown(
    first: Sequence[Metrics], latest: Sequence[Metrics], name: str, *, least: float, times: float
) -> tuple[float, float] | None:
    """Return the mean of a metric then and now, if it is at least ``least`` and has grown so many times."""
    begun, now = _mean(first, name), _mean(latest, name)
    return None if begun is None or now is None or now < least or now < times * begun else (begun, now)


def errors(first: Sequence[Metrics], before: Sequence[Metrics], latest: Sequence[Metrics]) -> str | None:
    """Every fifth episode breaks."""
    shares = {kind: _mean(latest, f"rollout/status/{kind}") or 0.0 for kind in _ERRORS}
    if sum(shares.values()) < 0.2:
        return None
    kinds = ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items() if share)
    return (
        f"{sum(shares.values()):.0%} of the episodes of the last {WINDOW} steps broke ({kinds}) and teach nothing. "
        "Their errors are in the log and in the review."
    )


def no_variance(first: Sequence[Metrics], before: Sequence[Metrics], latest: Sequence[Metrics]) -> str | None:
    """Groups whose members all earn the same teach nothing."""
    share, success = _mean(latest, "rollout/zero_variance_groups"), _mean(latest, "rollout/success")
    if share is None or share < 0.9 or (success is not None and success >= _SOLVED):
        return None
    return (
        f"In {share:.0%} of the groups of the last {WINDOW} steps all members earned the same, so nothing was learned "
        "from them. Take easier or harder tasks, more members in a group (group_size, num_return_sequences_in_group), "
        "or a reward with parts."
    )


def drift(first: Sequence[Metrics], before: Sequence[Metrics], latest: Sequence[Metrics]) -> str | None:
    """Sampler and trainer disagree about the same tokens, ever more."""
    grown = _grown(first, latest, "sampler/log_prob_difference_mean", least=0.02, times=4)
    if grown is None:
        return None
    begun, now = grown
    return (
        f"Trainer and sampler drift apart: their log-probs of the sampled tokens differ by {now:.3g} on average, by "
        f"{begun:.3g} in the beginning. Correct for it (sampler_correction.mode: tis), sample with newer weights "
        "(async_generation_ratio, model_update_frequency), or give both the same dtype."
    )


def age(first: Sequence[Metrics], before: Sequence[Metrics], latest: Sequence[Metrics]) -> str | None:
    """What is trained was sampled ever longer ago."""
    grown = _grown(first, latest, "rollout/staleness/mean", least=1.0, times=2)
    if grown is None:
        return None
    begun, now = grown
    return (
        f"What is trained gets older: it was sampled {now:.1f} versions of the weights ago, {begun:.1f} in the "
        "beginning. More is sampled than can be learned from: lower async_generation_ratio, or set experience.max_age."
    )


def entropy(first: Sequence[Metrics], before: Sequence[Metrics], latest: Sequence[Metrics]) -> str | None:
    """The policy explores no more, and gets no better."""
    begun, now = (_mean(steps, "train/policy/entropy") for steps in (first, latest))
    was, success = (_mean(steps, "rollout/success") for steps in (before, latest))
    if begun is None or now is None or was is None or success is None:
        return None
    if now > 0.05 * begun or success >= _SOLVED or success > was + 0.01:
        return None
    return (
        f"The policy explores no more: entropy {begun:.3g} → {now:.3g}, and success stays at {success:.0%}. Keep it "
        "open: entropy_loss_coef, a higher upper clip (pg_clip_high), a smaller learning rate."
    )


ALARMS: Final[Mapping[str, Alarm]] = {
    "errors": errors,
    "no_variance": no_variance,
    "drift": drift,
    "age": age,
    "entropy": entropy,
}
"""By name; each reads means over :data:`WINDOW` steps."""
