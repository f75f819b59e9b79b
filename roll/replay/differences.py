"""Where an episode that was played again differs from the stored one, in the order in which it happened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from typing import Any, Final

from roll.trajectories.model import Trajectory, Turn

_SHOWN: Final = 60


class Part(StrEnum):
    """Of what an episode is made."""

    ENVIRONMENT = "environment"
    RENDERING = "rendering"
    TOKENS = "tokens"
    LOG_PROBS = "log-probs"


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it was.

    Attributes:
        part: Whose it is.
        turn: The turn, counted from 0; the number of turns for what comes after the last.
        what: What differs: ``observation``, ``reward``, ``prompt``, …
        stored: What was stored, for people.
        again: What it is now.
        place: Where in it: a token or a character, counted from 0; ``None`` where it is one thing.
    """

    part: Part
    turn: int
    what: str
    stored: str
    again: str
    place: int | None = None

    @property
    def where(self) -> str:
        """Turn and place for people, who count from 1."""
        unit = "token" if self.what in ("prompt", "sampled token", "log-prob") else "character"
        return f"turn {self.turn + 1}" + ("" if self.place is None else f", {unit} {self.place + 1}")

    @property
    def meaning(self) -> str:
        """What a difference of this kind usually comes from."""
        return _MEANINGS.get(self.what, _MEANINGS[self.part])


_MEANINGS: Final[Mapping[str, str]] = {
    Part.ENVIRONMENT: "the same responses led elsewhere: its code, its options or its data are not those of the run, "
    "or it draws from something else than its seed (roll envs certify finds such).",
    Part.RENDERING: "the same messages became other tokens: the tokenizer, the chat template or the templates of the "
    "tag are not those of the run.",
    Part.TOKENS: "the same weights, prompt and request seed drew another token: the engine or the sampling settings "
    "are not those of the run, or these are not the weights.",
    Part.LOG_PROBS: "the weights, or the arithmetic (number format, device, versions), are not those of the run.",
    "seed": "the seed does not follow from the run's seed, tag and group: the configuration beside the episodes is of "
    "another run, or the file was changed.",
    "response": "the same tokens became another text: the tokenizer is not that of the run.",
    "reward": "the same action earned something else: the rewards of the environment or of its graders have changed.",
    "prompt key": "the data files have another prompt at this position: they are not those of the run.",
}


def differences(stored: Trajectory, again: Trajectory, seed: int | None = None) -> list[Difference]:
    """Return how an episode differs in environment and rendering, the first thing first.

    An episode that broke is compared up to there: what it broke on is not stored.

    Args:
        stored: As it was.
        again: Played again with the same responses.
        seed: The environment's seed by the configuration; ``None`` where there is no environment.
    """
    return list(_differences(stored, again, seed))


def _differences(stored: Trajectory, again: Trajectory, seed: int | None) -> Iterator[Difference]:
    environment = Part.ENVIRONMENT
    if seed is not None and seed != stored.seed:
        yield Difference(environment, 0, "seed", str(stored.seed), str(seed))
    if seed is None and stored.initial_hash != again.initial_hash:
        yield Difference(environment, 0, "prompt key", stored.initial_hash, again.initial_hash)
    for index, (old, new) in enumerate(zip_longest(stored.turns, again.turns)):
        if old is None or new is None:
            break
        yield from _of_turn(index, old, new)
    length, played = len(stored.turns), len(again.turns)
    if played < length:
        ended = again.error or f"it ended: {again.status}"
        yield from _one(environment, played, "end", f"turn {played + 1} followed", ended)
    elif not stored.status.is_error:
        yield from _of_end(stored, again)


def _of_turn(index: int, stored: Turn, again: Turn) -> Iterator[Difference]:
    environment, rendering = Part.ENVIRONMENT, Part.RENDERING
    yield from _text(environment, index, "observation", stored.observation, again.observation)
    yield from _text(environment, index, "frame", stored.frame, again.frame)
    yield from tokens(rendering, index, "prompt", stored.prompt_ids, again.prompt_ids)
    yield from _one(rendering, index, "fork", stored.starts_sample, again.starts_sample)
    yield from _text(rendering, index, "response", stored.response, again.response)
    yield from _one(environment, index, "action", stored.action, again.action)
    yield from _one(environment, index, "reward", stored.reward, again.reward)
    yield from _numbers(index, "reward", stored.reward_parts, again.reward_parts)
    yield from _numbers(index, "metric", stored.metrics, again.metrics)


def _of_end(stored: Trajectory, again: Trajectory) -> Iterator[Difference]:
    environment, after = Part.ENVIRONMENT, max(len(stored.turns) - 1, 0)
    yield from _text(environment, after, "last observation", stored.final_observation, again.final_observation)
    yield from _text(environment, after, "last frame", stored.final_frame, again.final_frame)
    if again.status == "aborted":
        yield Difference(environment, after, "end", f"it ended: {stored.status}", "it goes on")
        return
    yield from _one(environment, after, "end", str(stored.status), str(again.status))
    yield from _one(environment, after, "score", stored.score, again.score)
    yield from _numbers(after, "episode metric", stored.metrics, again.metrics)


def tokens(part: Part, turn: int, what: str, stored: Sequence[int], again: Sequence[int]) -> Iterator[Difference]:
    """Yield the first place at which two lists of tokens differ, if any."""
    for place, (old, new) in enumerate(zip_longest(stored, again)):
        if old != new:
            yield Difference(part, turn, what, _token(old), _token(new), place)
            return


def _token(token: int | None) -> str:
    return "no more tokens" if token is None else str(token)


def _one(part: Part, turn: int, what: str, stored: Any, again: Any) -> Iterator[Difference]:
    if stored != again:
        yield Difference(part, turn, what, _short(stored), _short(again))


def _numbers(turn: int, what: str, stored: Mapping[str, float], again: Mapping[str, float]) -> Iterator[Difference]:
    for name in sorted(stored.keys() | again.keys()):
        yield from _one(Part.ENVIRONMENT, turn, f"{what} {name}", stored.get(name), again.get(name))


def _text(part: Part, turn: int, what: str, stored: str | None, again: str | None) -> Iterator[Difference]:
    if stored == again:
        return
    if stored is None or again is None:
        yield from _one(part, turn, what, stored, again)
        return
    place = next((at for at, (old, new) in enumerate(zip(stored, again, strict=False)) if old != new), None)
    place = min(len(stored), len(again)) if place is None else place
    begin = max(0, place - _SHOWN // 3)
    yield Difference(part, turn, what, _short(stored[begin:]), _short(again[begin:]), place)


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else "nothing" if value is None else str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
