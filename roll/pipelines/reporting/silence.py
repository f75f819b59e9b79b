"""Notices a run that earns more and more by not answering: its reward rises, and nothing is ever solved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

WINDOW = 5
"""Steps that are compared: the first ones with the latest."""

_FEWER = 0.1
"""Share of valid actions that must have gone."""


class SilenceWatch:
    """Reads the metrics of each step and warns once.

    Reward that rises while success stays 0 and answers become invalid means that to say nothing valid pays better than
    to play: the environment charges too little for it.

    Args:
        state: What :meth:`state` returned, for a run that goes on.
    """

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        self._seen: list[tuple[float, float]] = [(reward, valid) for reward, valid in (state or {}).get("seen", ())]
        self._said = bool((state or {}).get("said", False))

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must remember, as JSON."""
        return {"seen": [list(pair) for pair in self._seen], "said": self._said}

    def step(self, metrics: Mapping[str, float]) -> str | None:
        """Take note of a step; return a warning the first time there is reason for one.

        Args:
            metrics: Those of a training step, with ``rollout/reward``, ``rollout/success`` and
                ``rollout/env/action_is_valid``; a run without the last has no actions, and is never warned about.
        """
        valid = metrics.get("rollout/env/action_is_valid")
        if self._said or valid is None:
            return None
        if metrics.get("rollout/success", 0.0) > 0:
            self._seen.clear()
            return None
        self._seen.append((metrics.get("rollout/reward", 0.0), valid))
        if len(self._seen) < 2 * WINDOW:
            return None
        first, last = _means(self._seen[:WINDOW]), _means(self._seen[-WINDOW:])
        self._said = last[0] > first[0] and last[1] <= first[1] - _FEWER
        if not self._said:
            return None
        return (
            f"The policy earns more by answering less: reward {first[0]:.3g} → {last[0]:.3g}, valid actions "
            f"{first[1]:.0%} → {last[1]:.0%}, and nothing is solved. Charge more for a response without an action: "
            "worst_reward or idle() of the environment, or format_penalty."
        )


def _means(steps: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the mean reward and the mean share of valid actions."""
    rewards, valid = zip(*steps, strict=True)
    return fmean(rewards), fmean(valid)
