"""What became of continuations: scores as a fan for each turn, and the turn at which most was lost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any, Final

from roll.replay.choosing import Chosen, name_of
from roll.replay.weights import Weights
from roll.trajectories.model import Trajectory

_BINS: Final = 12
_BARS: Final = " ▁▂▃▄▅▆▇█"
_CLEAR: Final = 2.0
"""How many standard errors a fall must have to be called one."""


@dataclass(frozen=True, slots=True)
class Fan:
    """Continuations from one turn.

    Attributes:
        turn: Before which turn they part, counted from 0.
        scores: Of whole episodes, the turns before included; those that broke are left out.
        successes: Share that was solved.
        broken: How many broke.
    """

    turn: int
    scores: Sequence[float]
    successes: float
    broken: int

    @classmethod
    def of(cls, turn: int, members: Sequence[Trajectory]) -> Fan:
        """Return the fan of continuations from a turn."""
        sound = [one for one in members if not one.status.is_error]
        scores = [one.score or 0.0 for one in sound]
        solved = fmean(one.success for one in sound) if sound else math.nan
        return cls(turn, scores, solved, len(members) - len(sound))

    @property
    def mean(self) -> float:
        """The value of the turn: the mean score."""
        return fmean(self.scores) if self.scores else math.nan

    @property
    def standard_error(self) -> float:
        """Of the mean; of fewer than 2 scores not a number."""
        return stdev(self.scores) / math.sqrt(len(self.scores)) if len(self.scores) > 1 else math.nan

    @property
    def success_error(self) -> float:
        """Standard error of the share that was solved."""
        return math.sqrt(self.successes * (1 - self.successes) / len(self.scores)) if self.scores else math.nan


@dataclass(frozen=True, slots=True)
class Fall:
    """By how much a response changed what could be expected.

    Attributes:
        turn: The turn of the response, counted from 0.
        change: Value after it less value before it.
        standard_error: Of the change.
    """

    turn: int
    change: float
    standard_error: float

    @property
    def is_clear(self) -> bool:
        """Whether it is more than chance makes."""
        return self.change < -_CLEAR * self.standard_error


@dataclass(frozen=True, slots=True)
class Branches:
    """What :func:`roll.replay.branching.branch` found.

    Attributes:
        chosen: Where the episode is stored.
        stored: The episode.
        weights: Who went on.
        n: Continuations from each turn.
        temperature: Of sampling, ``None`` for that of the run.
        seed: Keys the noise.
        fans: One for each turn that was asked for.
    """

    chosen: Chosen
    stored: Trajectory
    weights: Weights
    n: int
    temperature: float | None
    seed: int
    fans: Sequence[Fan]

    @property
    def falls(self) -> list[Fall]:
        """What each response changed between turns that follow each other; the last one's led to the stored score."""
        known = {fan.turn: (fan.mean, fan.standard_error) for fan in self.fans}
        if self.stored.score is not None:
            known[len(self.stored.turns)] = (self.stored.score, 0.0)
        return [
            Fall(turn, known[turn + 1][0] - mean, math.hypot(error, known[turn + 1][1]))
            for turn, (mean, error) in known.items()
            if turn + 1 in known
        ]

    @property
    def largest_fall(self) -> Fall | None:
        """Where most was lost; ``None`` where nothing was, or where only one turn was asked for."""
        falls = [fall for fall in self.falls if fall.change < 0] if len(self.fans) > 1 else []
        return min(falls, key=lambda fall: fall.change, default=None)

    def record(self) -> dict[str, Any]:
        """Return all figures as JSON; turns are counted from 0."""
        origin, fall = self.chosen.origin, self.largest_fall
        return {
            "trajectory": name_of(self.stored),
            "step": origin.step,
            "phase": origin.phase,
            "score": self.stored.score,
            "weights": {**asdict(self.weights), "exact": self.weights.exact},
            "n": self.n,
            "temperature": self.temperature,
            "seed": self.seed,
            "turns": [
                {
                    "turn": fan.turn,
                    "mean": _finite(fan.mean),
                    "standard_error": _finite(fan.standard_error),
                    "success": _finite(fan.successes),
                    "success_standard_error": _finite(fan.success_error),
                    "broken": fan.broken,
                    "scores": list(fan.scores),
                }
                for fan in self.fans
            ],
            "largest_fall": None if fall is None else {**asdict(fall), "clear": fall.is_clear},
        }


def as_text(found: Branches) -> Iterator[str]:
    """Yield lines: the fan of each turn, and where the game was lost."""
    stored, falls = found.stored, {fall.turn: fall for fall in found.falls}
    scores = [score for fan in found.fans for score in fan.scores]
    low, high = min(scores, default=0.0), max(scores, default=0.0)
    ended = "no score" if stored.score is None else f"score {stored.score:.2f}"
    yield f"{found.chosen.run.folder}, {found.chosen.place}: {name_of(stored)} {stored.tag}, {ended}, {stored.status}"
    yield f"{found.n} continuations from each turn, weights {found.weights}"
    if found.weights.remark:
        yield found.weights.remark
    yield ""
    span = f"{low:.4g} … {high:.4g}"
    wide = max(_BINS, len(span))
    yield f"{'turn':>4}  {'value':>15}  {'solved':>13}  {span:^{wide}}  what was done, and what it changed"
    for fan in found.fans:
        value = f"{fan.mean:.2f} ± {fan.standard_error:.2f}"
        solved = f"{fan.successes:.0%} ± {fan.success_error:.0%}"
        fall, action = falls.get(fan.turn), stored.turns[fan.turn].action or "no valid action"
        change = "" if fall is None else f" {fall.change:+.2f} ± {fall.standard_error:.2f}"
        bars = histogram(fan.scores, low, high)
        broken = f"  {fan.broken} broke" if fan.broken else ""
        yield f"{fan.turn + 1:>4}  {value:>15}  {solved:>13}  {bars:<{wide}}  {action}{change}{broken}"
    fall = found.largest_fall
    if fall is not None:
        sure = "" if fall.is_clear else f", which is less than {_CLEAR:.0f} standard errors: perhaps chance"
        yield f"\nMost was lost at turn {fall.turn + 1}: {fall.change:+.2f} ± {fall.standard_error:.2f}{sure}."


def histogram(scores: Sequence[float], low: float, high: float) -> str:
    """Return a line of bars, how many scores are in each part between ``low`` and ``high``."""
    counts = [0] * _BINS
    for score in scores:
        place = 0.0 if high == low else (score - low) / (high - low)
        counts[min(int(place * _BINS), _BINS - 1)] += 1
    most = max(counts)
    return "".join(_BARS[math.ceil(count / most * (len(_BARS) - 1)) if most else 0] for count in counts)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
