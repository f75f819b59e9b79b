"""The review page of one trajectory: a self-contained HTML file.

The pages need no network and no server, and what a model wrote is only ever text in them: the template escapes
everything, scripts hold no data, and a content security policy forbids loading anything.
"""

from __future__ import annotations

import html
import json
import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import jinja2

from roll.trajectories.model import Trajectory, Turn
from roll.viewer.frames import Frame, make_frame

TokenText = Callable[[int], str]
"""Turns a token id into what a person should see for it."""

_META = re.compile(r'<meta name="roll:trajectory" content="([^"]*)">')
_HEAD_CHARACTERS = 8192
_EXCERPT = 160
"""Characters of a prompt that the index shows."""


@dataclass(frozen=True, slots=True)
class PageInfo:
    """What the index knows of a page; stored in the page itself, so that an index can be made from any pages.

    Attributes:
        tag: Environment tag.
        group_id: Group of the trajectory.
        episode: Index within its group.
        seed: Environment seed.
        step: Training step of the evaluation.
        status: How the episode ended.
        score: Its score, ``None`` if never scored.
        success: Whether it was solved.
        turns: Number of turns.
        prompt: The beginning of what was asked, where an answer is graded; empty for a game.
    """

    tag: str
    group_id: str
    episode: int
    seed: int
    step: int
    status: str
    score: float | None
    success: bool
    turns: int
    prompt: str = ""

    @property
    def verdict(self) -> str:
        """``good``, ``bad`` (it broke) or empty (not solved): never the sign of a reward, which a format may earn."""
        broken = self.status.startswith("error") or self.status == "aborted"
        return "good" if self.success else "bad" if broken else ""


@dataclass(frozen=True, slots=True)
class Link:
    """A page beside this one: where it is, and what it is about."""

    address: str
    info: PageInfo


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Where a reader can go from a page.

    Attributes:
        index: Relative address of the index.
        group: Relative address of the page that shows the members of its group side by side.
        members: The members of its group that have pages, itself included.
        previous: The page before it in the index.
        following: The page after it.
    """

    index: str | None = None
    group: str | None = None
    members: tuple[Link, ...] = ()
    previous: Link | None = None
    following: Link | None = None


@dataclass(frozen=True, slots=True)
class TokenView:
    """A sampled token: its text, its probability, how surprising it was in ``[0, 1]`` and what hovering shows."""

    text: str
    surprise: float
    hint: str


@dataclass(frozen=True, slots=True)
class TurnView:
    """One turn as the template shows it."""

    turn: Turn
    frame: Frame
    total: float
    tokens: tuple[TokenView, ...]
    mean_logprob: float | None


def trajectory_page_path(directory: str | Path, trajectory: Trajectory, *, step: int) -> Path:
    """Return where the page of a trajectory belongs: ``<directory>/step=000010/SimpleSokoban-17-0.html``."""
    name = f"{trajectory.tag}-{trajectory.group_id}-{trajectory.episode}"
    return Path(directory) / f"step={step:06d}" / f"{_safe(name)}.html"


def group_page_path(directory: str | Path, trajectory: Trajectory, *, step: int) -> Path:
    """Return where the page of its group belongs: ``<directory>/step=000010/SimpleSokoban-17.group.html``."""
    return Path(directory) / f"step={step:06d}" / f"{_safe(f'{trajectory.tag}-{trajectory.group_id}')}.group.html"


def is_answer(trajectory: Trajectory) -> bool:
    """Whether it answers a prompt and is graded, instead of acting in an environment."""
    return bool(trajectory.turns) and all(turn.action == "" for turn in trajectory.turns)


def write_trajectory_page(
    trajectory: Trajectory,
    path: str | Path,
    *,
    title: str,
    step: int,
    token_text: TokenText | None = None,
    neighbours: Neighbours = Neighbours(),
) -> Path:
    """Write the page of one trajectory.

    Args:
        trajectory: What to show. Its frames are board text or ``data:image`` URIs.
        path: HTML file to write, whole or not at all.
        title: Name of the run or evaluation.
        step: Training step.
        token_text: Gives each sampled token's text; without it responses are shown whole, without probabilities.
        neighbours: Where a reader can go from here.

    Returns:
        The path written.
    """
    path = Path(path)
    info = page_info(trajectory, step)
    rendered = template("trajectory.html.jinja").render(
        title=title,
        neighbours=neighbours,
        answer=is_answer(trajectory),
        info=info,
        meta=json.dumps(asdict(info)),
        trajectory=trajectory,
        turns=_turn_views(trajectory, token_text),
        final_frame=make_frame(trajectory.final_frame or trajectory.final_observation),
    )
    write_whole(path, rendered)
    return path


def page_info(trajectory: Trajectory, step: int) -> PageInfo:
    """Return what the index shows of a trajectory."""
    asked = trajectory.messages[-1].get("content", "") if trajectory.messages and is_answer(trajectory) else ""
    return PageInfo(
        tag=trajectory.tag,
        group_id=trajectory.group_id,
        episode=trajectory.episode,
        seed=trajectory.seed,
        step=step,
        status=trajectory.status.value,
        score=trajectory.score,
        success=trajectory.success,
        turns=len(trajectory.turns),
        prompt=" ".join(asked.split())[:_EXCERPT],
    )


def read_info(path: Path) -> PageInfo | None:
    """Return what a page says of itself, ``None`` where it is not a trajectory page."""
    with path.open(encoding="utf-8") as file:
        found = _META.search(file.read(_HEAD_CHARACTERS))
    return None if found is None else PageInfo(**json.loads(html.unescape(found.group(1))))


def _turn_views(trajectory: Trajectory, token_text: TokenText | None) -> list[TurnView]:
    """Return the turns as the template shows them."""
    views, total = [], 0.0
    for turn in trajectory.turns:
        total += turn.reward
        views.append(
            TurnView(
                turn=turn,
                frame=make_frame(turn.frame or turn.observation),
                total=total,
                tokens=() if token_text is None else tuple(_token_views(turn, token_text)),
                mean_logprob=sum(turn.logprobs) / len(turn.logprobs) if turn.logprobs else None,
            )
        )
    return views


def _token_views(turn: Turn, token_text: TokenText) -> Iterable[TokenView]:
    """Yield the sampled tokens of a turn; one without a log-probability is shown as certain."""
    for index, token_id in enumerate(turn.completion_ids):
        logprob = turn.logprobs[index] if index < len(turn.logprobs) else None
        hint = f"token {token_id}"
        surprise = 0.0
        if logprob is not None:
            surprise = min(1.0, -logprob / 4.0) if math.isfinite(logprob) else 1.0
            hint += f" · p = {math.exp(logprob):.3g} · log p = {logprob:.3f}"
        yield TokenView(token_text(token_id), round(max(0.0, surprise), 2), hint)


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", name)


@lru_cache
def template(name: str) -> jinja2.Template:
    """Return a template of this package. Everything is escaped, whatever the file is called."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("roll.viewer", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def write_whole(path: Path, content: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(content, encoding="utf-8", errors="replace")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
