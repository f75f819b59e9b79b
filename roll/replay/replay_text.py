"""A replay for people, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from roll.config.plain_text import plain_text
from roll.replay.choosing import name_of
from roll.replay.differences import Difference, Part
from roll.replay.replaying import EpisodeReplay, Replay

_SHOWN: Final = 8


def as_text(replay: Replay) -> Iterator[str]:
    """Yield lines: what was played, a row for each part, and the first difference with what it means."""
    chosen, episodes = replay.chosen, replay.episodes
    one = episodes[0].stored if len(episodes) == 1 else None
    if one is not None:
        score = "no score" if one.score is None else f"score {one.score:.2f}"
        what = f"{name_of(one)} {plain_text(one.tag)}, {len(one.turns)} turns, {score}, {one.status}"
    else:
        what = f"{len(episodes)} episodes"
    yield f"{chosen.run.folder}, {chosen.place}: {what}"
    for part in Part:
        yield f"  {part:<12} {_row(replay, part)}"
    if replay.weights is not None:
        yield f"  weights      {plain_text(str(replay.weights))}"
        if replay.weights.remark:
            yield f"               {replay.weights.remark}"
    broken = sum(each.stored.status.is_error for each in episodes)
    if broken:
        yield f"  {broken} of them broke, and are compared up to there: what an episode broke on is not stored"
    differing = [each for each in episodes if each.differences]
    for each in differing[:_SHOWN]:
        yield ""
        yield from _explained(each, alone=one is not None)
    if len(differing) > _SHOWN:
        yield f"\n… and {len(differing) - _SHOWN} more episodes differ"


def _row(replay: Replay, part: Part) -> str:
    """Return what there is to say of one part."""
    found = replay.of(part)
    if found:
        each, first = found[0]
        who = "" if len(replay.episodes) == 1 else f"in {len(found)} episodes, first {name_of(each.stored)} "
        most = max((abs(each.log_probs.largest) for each, _ in found), default=0.0)
        size = f", the largest difference {most:.2g}" if part is Part.LOG_PROBS else ""
        return f"differs  {who}{first.where}: {first.what}{size}"
    turns = sum(len(each.stored.turns) for each in replay.episodes)
    if part is Part.ENVIRONMENT:
        return f"same     {turns:,} turns: observations, actions, rewards, metrics, the end"
    if part is Part.RENDERING:
        shown = sum(len(turn.prompt_ids) for each in replay.episodes for turn in each.stored.turns)
        return f"same     {shown:,} prompt tokens"
    if replay.weights is None:
        return "–        no policy was asked"
    if part is Part.TOKENS:
        return _drawn(replay)
    return _log_probs(replay)


def _drawn(replay: Replay) -> str:
    drawn, skipped = (sum(getattr(each, name) for each in replay.episodes) for name in ("drawn", "skipped"))
    rest = f"; {skipped:,} turns were sampled with other weights" if skipped else ""
    if replay.draws:
        return f"same     {drawn:,} sampled tokens, drawn again from the same request seeds{rest}"
    assert replay.weights is not None
    if not replay.weights.exact:
        return "–        not drawn again: other weights"
    return "–        not drawn again: the run's engine draws differently each time"


def _log_probs(replay: Replay) -> str:
    compared = sum(each.log_probs.compared for each in replay.episodes)
    equal = sum(each.log_probs.equal for each in replay.episodes)
    if compared == 0:
        return "–        nothing to compare"
    if compared == equal:
        return f"same     {compared:,} numbers, equal bit for bit"
    most = max(replay.episodes, key=lambda each: abs(each.log_probs.largest))
    numbers = most.log_probs
    who = "" if len(replay.episodes) == 1 else f"{name_of(most.stored)} "
    where = f"largest difference {numbers.largest:+.2g} at {who}turn {numbers.turn + 1}, token {numbers.token + 1}"
    counts = replay.weights is not None and (replay.weights.exact or replay.weights.asked)
    return f"{'same    ' if counts else '–       '} {compared:,} numbers, {equal:,} equal bit for bit; {where}"


def _explained(each: EpisodeReplay, alone: bool) -> Iterator[str]:
    first = each.differences[0]
    more = f" ({len(each.differences) - 1} more follow)" if len(each.differences) > 1 else ""
    who = "first difference" if alone else name_of(each.stored)
    yield f"{who}: {first.part}, {first.where}, {first.what}{more}"
    yield f"  stored  {plain_text(first.stored)}"
    yield f"  now     {plain_text(first.again)}"
    yield f"  {first.meaning[0].upper()}{first.meaning[1:]}"


def as_record(replay: Replay) -> dict[str, Any]:
    """Return the same as JSON; turns, tokens and characters are counted from 0."""
    origin, weights = replay.chosen.origin, replay.weights
    return {
        "run": str(replay.chosen.run.folder),
        "step": origin.step,
        "phase": origin.phase,
        "same": replay.same,
        "weights": None if weights is None else {**asdict(weights), "exact": weights.exact},
        "tokens_drawn_again": replay.draws,
        "episodes": [
            {
                "trajectory": name_of(each.stored),
                "tag": each.stored.tag,
                "turns": len(each.stored.turns),
                "same": not each.differences,
                "differences": [_difference(one) for one in each.differences],
                "tokens": each.drawn,
                "turns_of_other_weights": each.skipped,
                "log_probs": asdict(each.log_probs),
            }
            for each in replay.episodes
        ],
    }


def _difference(one: Difference) -> dict[str, Any]:
    return {**asdict(one), "part": str(one.part)}
