"""What an episode is shown as: its text made visible, a response in its parts, tokens with what is known of each."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from roll.generation.pictures import picture_frame
from roll.trajectories.learned import Learned
from roll.trajectories.model import Trajectory, Turn
from roll.viewer.frames import Frame, make_frame
from roll.viewer.lanes import Lane, make_lane

WHOLE: Final = 20_000
"""Characters of a text that are shown at first."""

TOKENS: Final = 3_000
"""Tokens of a turn's prompt, and of its response, that are shown at first."""

MOST_ENTROPY: Final = 2.0
"""Nats from which on a token has the darkest shade: as uncertain as among seven that are equally likely."""

_PARTS = re.compile(r"<(think|tool_call|tool_response)>(.*?)(?:</\1>|\Z)", re.DOTALL)
_NAMES: Final = {"think": "thinking", "tool_call": "tool call", "tool_response": "tool response"}
_RIGHT: Final = "right answer: "


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a response: ``text``, ``thinking``, ``tool call`` or ``tool response``."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class TokenView:
    """One token.

    Attributes:
        text: What it stands for; its number where that was not kept.
        kind: ``context`` (the policy was shown it), ``sampled``.
        shades: Classes that say how it is shaded, by whatever is known of it.
        hint: What pointing at it shows.
    """

    text: str
    kind: str
    shades: str
    hint: str


@dataclass(frozen=True, slots=True)
class TurnView:
    """One turn.

    Attributes:
        number: From 1.
        turn: What was stored.
        frame: What a person would look at before the action.
        pictures: What the policy was shown beside it.
        total: Rewards up to and with this turn.
        parts: The response.
        mean_logprob: Of its sampled tokens.
    """

    number: int
    turn: Turn
    frame: Frame
    pictures: tuple[Frame, ...]
    total: float
    parts: tuple[Part, ...]
    mean_logprob: float | None

    @property
    def seconds(self) -> float:
        """Wall time of all its phases."""
        return sum(self.turn.seconds.values())


@dataclass(frozen=True, slots=True)
class EpisodeView:
    """A trajectory as pages show it.

    Attributes:
        trajectory: What was stored.
        answer: Whether it is an answer that was graded, not a game.
        turns: Its turns.
        final_frame: What a person would look at after the last.
        lane: Where its time went.
        right_answer: What was expected of an answer; empty for a game.
        texts: Token → its text, where that was kept.
    """

    trajectory: Trajectory
    answer: bool
    turns: tuple[TurnView, ...]
    final_frame: Frame
    right_answer: str
    lane: Lane | None
    texts: Mapping[int, str] = field(default_factory=dict)


def view_episode(trajectory: Trajectory, texts: Mapping[int, str]) -> EpisodeView:
    """Return a trajectory as pages show it."""
    answer = bool(trajectory.turns) and all(turn.action == "" for turn in trajectory.turns)
    turns, total = [], 0.0
    for number, turn in enumerate(trajectory.turns, start=1):
        total += turn.reward
        mean = sum(turn.logprobs) / len(turn.logprobs) if turn.logprobs else None
        frame = make_frame(turn.frame or turn.observation)
        shown = dict.fromkeys(picture_frame(picture.data) for picture in turn.pictures)
        pictures = tuple(make_frame(each) for each in shown if each != turn.frame)
        turns.append(TurnView(number, turn, frame, pictures, total, tuple(split_response(turn.response)), mean))
    final = make_frame(trajectory.final_frame or trajectory.final_observation)
    right = trajectory.final_observation.removeprefix(_RIGHT) if answer else ""
    return EpisodeView(trajectory, answer, tuple(turns), final, right, make_lane(trajectory.turns), texts)


def split_response(text: str) -> Iterator[Part]:
    """Yield the parts of a response in their order; one that never ends goes on to the end."""
    start = 0
    for found in _PARTS.finditer(text):
        if text[start : found.start()].strip():
            yield Part("text", text[start : found.start()].strip("\n"))
        yield Part(_NAMES[found[1]], found[2].strip("\n"))
        start = found.end()
    if text[start:].strip() or not start:
        yield Part("text", text[start:].strip("\n"))


def token_views(
    turn: Turn, texts: Mapping[int, str], learned: Learned | None = None
) -> tuple[list[TokenView], list[TokenView]]:
    """Return the tokens that the policy was shown before its response, and those that it sampled.

    Args:
        turn: The turn.
        texts: Token → its text.
        learned: What the learner made of the sampled tokens, where that is known.
    """
    context = [TokenView(_text(texts, token), "context", "", f"token {token}") for token in turn.prompt_ids]
    if learned is not None and len(learned.trained) != len(turn.completion_ids):
        learned = None  # of another episode
    sampled = []
    for index, token in enumerate(turn.completion_ids):
        logprob = turn.logprobs[index] if index < len(turn.logprobs) else None
        hints, shades = [f"token {token}"], []
        if logprob is not None:
            shades.append(f"s{surprise(logprob)}")
            hints.append(f"p = {math.exp(min(logprob, 0.0)):.3g} · log p = {logprob:.3f}")
        if learned is not None:
            if logprob is not None and learned.log_probs is not None:
                difference = learned.log_probs[index] - logprob
                shades.append(f"r{_signed(difference, 0.5)}")
                hints.append(f"trainer/sampler = {math.exp(min(difference, 50.0)):.4g}")
            shades.append(f"a{_signed(learned.advantages[index], 2.0)}")
            hints.append(f"advantage {learned.advantages[index]:+.3g}")
            entropy = math.nan if learned.entropies is None else learned.entropies[index]
            if math.isfinite(entropy):
                shades.append(f"e{min(9, round(entropy / MOST_ENTROPY * 9))}")
                hints.append(f"entropy {entropy:.3f}")
            if not learned.trained[index]:
                shades.append("untrained")
                hints.append("left out of the loss")
        sampled.append(TokenView(_text(texts, token), "sampled", " ".join(shades), " · ".join(hints)))
    return context, sampled


def _signed(value: float, most: float) -> str:
    """Return ``0`` for nothing, ``p1`` to ``p4`` for more, ``m1`` to ``m4`` for less; 4 from ``most`` on."""
    if not math.isfinite(value):
        return "p4" if value > 0 else "m4"
    step = min(4, math.ceil(abs(value) / most * 4 - 1e-6))
    return "0" if abs(value) < most / 100 else f"{'p' if value > 0 else 'm'}{step}"


def surprise(logprob: float) -> int:
    """Return 0 for a token that was certain, 9 for one with a probability of 2 % or less or none at all."""
    return 9 if not math.isfinite(logprob) else max(0, min(9, round(-logprob * 9 / 4)))


def visible(text: object) -> str:
    """Return text in which nothing is hidden: control and direction characters are shown, not obeyed.

    Line ends and tabs stay; ``ESC`` becomes ``␛``, a right-to-left override ``⟨U+202E⟩``.
    """
    text = str(text)
    return text if text.isascii() and text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character in "\n\t" or character.isprintable():
        return character
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    kind = unicodedata.category(character)
    return character if kind in ("Zs", "Co") or code in (0x200C, 0x200D) else f"⟨U+{code:04X}⟩"


def _text(texts: Mapping[int, str], token: int) -> str:
    return texts.get(token, f"⟨{token}⟩")
