"""Review pages: one self-contained HTML file per trajectory, and an index over all of them.

The pages need no network and no server, and what a model wrote is only ever text in them: the template escapes
everything, scripts hold no data, and a content security policy forbids loading anything.
"""

from __future__ import annotations

import html
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

import jinja2

from roll.trajectories.model import Trajectory, Turn
from roll.viewer.frames import Frame, make_frame

INDEX_FROM_PAGE = "../index.html"
"""Address of the index as seen from a page at :func:`trajectory_page_path`."""

TokenText = Callable[[int], str]
"""Turns a token id into what a person should see for it."""

_META = re.compile(r'<meta name="roll:trajectory" content="([^"]*)">')
_HEAD_CHARACTERS = 8192


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
    return Path(directory) / f"step={step:06d}" / f"{re.sub(r'[^A-Za-z0-9._=-]+', '-', name)}.html"


def write_trajectory_page(
    trajectory: Trajectory,
    path: str | Path,
    *,
    title: str,
    step: int,
    token_text: TokenText | None = None,
    index_link: str | None = None,
) -> Path:
    """Write the page of one trajectory.

    Args:
        trajectory: What to show. Its frames are board text or ``data:image`` URIs.
        path: HTML file to write, whole or not at all.
        title: Name of the run or evaluation.
        step: Training step.
        token_text: Gives each sampled token's text; without it responses are shown whole, without probabilities.
        index_link: Relative address of the index, for a link back to it.

    Returns:
        The path written.
    """
    path = Path(path)
    info = _info(trajectory, step)
    rendered = _template("trajectory.html.jinja").render(
        title=title,
        index_link=index_link,
        info=info,
        meta=json.dumps(asdict(info)),
        trajectory=trajectory,
        turns=_turn_views(trajectory, token_text),
        final_frame=make_frame(trajectory.final_frame or trajectory.final_observation),
    )
    _write(path, rendered)
    return path


def write_pages(
    trajectories: Sequence[Trajectory],
    directory: str | Path,
    *,
    title: str,
    step: int,
    token_text: TokenText | None = None,
) -> Path:
    """Write the pages of one evaluation under ``directory`` and bring its index up to date.

    Returns:
        The path of the index.
    """
    for trajectory in trajectories:
        path = trajectory_page_path(directory, trajectory, step=step)
        write_trajectory_page(
            trajectory, path, title=title, step=step, token_text=token_text, index_link=INDEX_FROM_PAGE
        )
    return write_index(directory, title=title)


def write_index(directory: str | Path, *, title: str = "Trajectories") -> Path:
    """Write ``index.html``: one row per level, one column per evaluation, each cell the page of that episode.

    The pages are found below ``directory`` and read for what they say of themselves, so an index can be made again at
    any time, also after pages were added or deleted by hand.

    Returns:
        The path of the index.
    """
    directory = Path(directory)
    pages: dict[tuple[str, str, int, int], dict[int, tuple[PageInfo, str]]] = {}
    for path in sorted(directory.rglob("*.html")):
        info = _read_info(path)
        if info is not None:
            link = quote(path.relative_to(directory).as_posix())
            pages.setdefault((info.tag, info.group_id, info.seed, info.episode), {})[info.step] = (info, link)
    steps = sorted({step for cells in pages.values() for step in cells})
    columns = [_column(step, [cells[step][0] for cells in pages.values() if step in cells]) for step in steps]
    rows = sorted(pages.items(), key=lambda item: (item[0][0], _natural(item[0][1]), item[0][2], item[0][3]))
    rendered = _template("index.html.jinja").render(title=title, columns=columns, rows=rows)
    _write(directory / "index.html", rendered)
    return directory / "index.html"


def _column(step: int, infos: Sequence[PageInfo]) -> dict[str, float]:
    """Return the head of one column of the index."""
    scores = [info.score for info in infos if info.score is not None]
    return {
        "step": step,
        "pages": len(infos),
        "success": sum(info.success for info in infos) / len(infos),
        "score": sum(scores) / len(scores) if scores else math.nan,
    }


def _info(trajectory: Trajectory, step: int) -> PageInfo:
    """Return what the index shows of a trajectory."""
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
    )


def _read_info(path: Path) -> PageInfo | None:
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


def _natural(text: str) -> list[tuple[int, int, str]]:
    """Return a sort key by which ``"g10"`` comes after ``"g9"``."""
    parts = re.findall(r"\d+|\D+", text)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


@lru_cache
def _template(name: str) -> jinja2.Template:
    """Return a template of this package. Everything is escaped, whatever the file is called."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("roll.viewer", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def _write(path: Path, content: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(content, encoding="utf-8", errors="replace")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
