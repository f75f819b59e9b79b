"""What became of continuations of an episode, drawn: a fan of scores at every turn, and the value along the game."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from roll.runs.layout import FANS, branches_of
from roll.viewer.episodes import Row

COLUMN: Final = 64
"""Units that a turn is wide."""
HEIGHT: Final = 160
"""Units from the lowest to the highest score."""
_BINS: Final = 16


@dataclass(frozen=True, slots=True)
class Bar:
    """Scores that lie near each other: where, how wide for how many, and what that says."""

    x: float
    y: float
    width: float
    height: float
    hint: str


@dataclass(frozen=True, slots=True)
class FanView:
    """Continuations from one turn.

    Attributes:
        number: The turn that they begin with, from 1.
        x: Where it is drawn.
        y: Where their mean is drawn; ``None`` where none has a score.
        reach: How far its standard error reaches up and down.
        value: Mean score and standard error in words.
        solved: Share solved and standard error in words.
        bars: The scores.
        action: What the policy did instead.
        change: By how much that changed the value, in words; empty where that is not known.
        worst: Whether most was lost by it.
    """

    number: int
    x: float
    y: float | None
    reach: float
    value: str
    solved: str
    bars: tuple[Bar, ...]
    action: str
    change: str
    worst: bool


@dataclass(frozen=True, slots=True)
class BranchView:
    """All fans of an episode.

    Attributes:
        fans: By turn.
        n: Continuations from each.
        low: The lowest score drawn.
        high: The highest.
        line: The values as points of a line, the score of the episode at its end.
        width: Units that the drawing is wide.
        end: Where the score of the episode is drawn; ``None`` where it has none.
        lost: A sentence on where most was lost; empty where nothing was.
    """

    fans: tuple[FanView, ...]
    n: int
    low: float
    high: float
    line: str
    width: float
    end: tuple[float, float] | None
    lost: str


def command(home: Path, row: Row) -> str:
    """Return the command that samples continuations of an episode."""
    words = ["roll", "branch", str(home), f"{row.group_id}/{row.episode}", "--step", str(row.step)]
    return shlex.join([*words, "--phase", row.phase, "--every-turn", "--n", "16"])


def read_branches(home: Path, row: Row, actions: Sequence[str | None]) -> BranchView | None:
    """Return the continuations that ``roll branch`` stored of an episode; ``None`` where there are none.

    Args:
        home: Folder of the run.
        row: The episode.
        actions: What its turns did.
    """
    path = branches_of(home, row.phase, row.step, row.group_id, row.episode) / FANS
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        # Another run may have replaced the episode since.
        same = len(actions) > max(one["turn"] for one in record["turns"]) and record["score"] == row.score
        return view_branches(record, actions) if same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def view_branches(record: Mapping[str, Any], actions: Sequence[str | None]) -> BranchView:
    """Return what ``fans.json`` holds as it is drawn."""
    turns, end = record["turns"], record["score"]
    scores = [score for one in turns for score in one["scores"]] + ([] if end is None else [end])
    low, high = min(scores, default=0.0), max(scores, default=0.0)
    known = {one["turn"]: (one["mean"], one["standard_error"] or 0.0) for one in turns if one["mean"] is not None}
    if end is not None:
        known[len(actions)] = (end, 0.0)
    fall = record["largest_fall"]

    def height(score: float) -> float:
        return round(HEIGHT * (0.5 if high == low else (high - score) / (high - low)), 1)

    fans = []
    for one in turns:
        turn, x = one["turn"], COLUMN * (one["turn"] + 0.5)
        mean, error = one["mean"], one["standard_error"]
        reach = 0.0 if error is None or high == low else HEIGHT * error / (high - low)
        change = ""
        if mean is not None and turn + 1 in known:
            after, its = known[turn + 1]
            change = f"{after - mean:+.2f} ± {math.hypot(error or 0.0, its):.2f}"
        fans.append(
            FanView(
                number=turn + 1,
                x=x,
                y=None if mean is None else height(mean),
                reach=round(reach, 1),
                value=_with_error(mean, error, "{:.2f}"),
                solved=_with_error(one["success"], one["success_standard_error"], "{:.0%}"),
                bars=tuple(_bars(one["scores"], low, high, x)),
                action=actions[turn] or "no valid action",
                change=change,
                worst=fall is not None and fall["turn"] == turn,
            )
        )
    points = [(COLUMN * (turn + 0.5), height(mean)) for turn, (mean, _) in sorted(known.items())]
    return BranchView(
        fans=tuple(fans),
        n=record["n"],
        low=low,
        high=high,
        line=" ".join(f"{x},{y}" for x, y in points),
        width=COLUMN * (len(actions) + 1),
        end=None if end is None else points[-1],
        lost="" if fall is None else _lost(fall),
    )


def _bars(scores: Sequence[float], low: float, high: float, x: float) -> list[Bar]:
    counts: dict[int, int] = {}
    for score in scores:
        place = 0.5 if high == low else (high - score) / (high - low)
        counts[min(int(place * _BINS), _BINS - 1)] = counts.get(min(int(place * _BINS), _BINS - 1), 0) + 1
    size, most = HEIGHT / _BINS, max(counts.values(), default=1)
    bars = []
    for place, count in sorted(counts.items()):
        middle = high - (place + 0.5) / _BINS * (high - low)
        width = round(COLUMN * 0.8 * count / most, 1)
        hint = f"{count} of {len(scores)} near {middle:.2f}"
        bars.append(Bar(round(x - width / 2, 1), round(place * size + 1, 1), width, round(size - 2, 1), hint))
    return bars


def _with_error(value: float | None, error: float | None, form: str) -> str:
    if value is None:
        return "–"
    return form.format(value) if error is None else f"{form.format(value)} ± {form.format(error)}"


def _lost(fall: Mapping[str, Any]) -> str:
    sure = "" if fall["clear"] else ", which may be chance"
    return f"Most was lost at turn {fall['turn'] + 1}: {fall['change']:+.2f} ± {fall['standard_error']:.2f}{sure}."
