"""All review pages of an evaluation: a page per trajectory, a page per group, and the index over every evaluation."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from roll.trajectories.model import Trajectory
from roll.viewer.page import (
    Link,
    Neighbours,
    PageInfo,
    TokenText,
    group_page_path,
    is_answer,
    page_info,
    read_info,
    template,
    trajectory_page_path,
    write_trajectory_page,
    write_whole,
)

INDEX_FROM_PAGE = "../index.html"
"""Address of the index as seen from a page at :func:`trajectory_page_path`."""

SUMMARY = "summary.json"
"""Beside the pages of a step: how all its episodes went, of which only some have pages."""


def write_pages(
    trajectories: Sequence[Trajectory],
    directory: str | Path,
    *,
    title: str,
    step: int,
    token_text: TokenText | None = None,
    of: Sequence[Trajectory] | None = None,
) -> Path:
    """Write the pages of one evaluation under ``directory`` and bring its index up to date; see :func:`write_step`.

    Returns:
        The path of the index.
    """
    write_step(trajectories, directory, title=title, step=step, token_text=token_text, of=of)
    return write_index(directory, title=title)


def write_step(
    trajectories: Sequence[Trajectory],
    directory: str | Path,
    *,
    title: str,
    step: int,
    token_text: TokenText | None = None,
    of: Sequence[Trajectory] | None = None,
) -> None:
    """Write the pages of one evaluation, which know their neighbours; not the index over all evaluations.

    Args:
        trajectories: Those that get a page.
        directory: Where pages go.
        title: Name of the run or evaluation.
        step: Training step.
        token_text: Gives each sampled token's text; without it responses are shown whole, without probabilities.
        of: All episodes of the step, for the figures of the index; ``trajectories`` if ``None``.
    """
    directory = Path(directory)
    ordered = sorted(trajectories, key=lambda each: _order(page_info(each, step)))
    links = [_link(trajectory, directory, step) for trajectory in ordered]
    groups: dict[tuple[str, str], list[int]] = {}
    for number, trajectory in enumerate(ordered):
        groups.setdefault((trajectory.tag, trajectory.group_id), []).append(number)
    for members in groups.values():
        group = group_page_path(directory, ordered[members[0]], step=step) if len(members) > 1 else None
        beside = tuple(links[number] for number in members)
        if group is not None:
            _write_group([ordered[number] for number in members], beside, group, title=title, step=step)
        for number in members:
            neighbours = Neighbours(
                INDEX_FROM_PAGE,
                quote(group.name) if group is not None else None,
                beside,
                links[number - 1] if number else None,
                links[number + 1] if number + 1 < len(links) else None,
            )
            path = trajectory_page_path(directory, ordered[number], step=step)
            write_trajectory_page(
                ordered[number], path, title=title, step=step, token_text=token_text, neighbours=neighbours
            )
    if ordered:
        summary = _summary([page_info(each, step) for each in (of if of is not None else trajectories)])
        write_whole(directory / f"step={step:06d}" / SUMMARY, json.dumps(summary))


def write_index(directory: str | Path, *, title: str = "Trajectories") -> Path:
    """Write ``index.html``: one row per level or prompt, one column per evaluation, each cell the page of an episode.

    The pages are found below ``directory`` and read for what they say of themselves, so an index can be made again at
    any time, also after pages were added or deleted by hand.

    Returns:
        The path of the index.
    """
    directory = Path(directory)
    pages: dict[tuple[str, str, int, int], dict[int, tuple[PageInfo, str]]] = {}
    for path in sorted(directory.rglob("*.html")):
        info = read_info(path)
        if info is not None:
            link = quote(path.relative_to(directory).as_posix())
            pages.setdefault((info.tag, info.group_id, info.seed, info.episode), {})[info.step] = (info, link)
    steps = sorted({step for cells in pages.values() for step in cells})
    columns = [
        _column(directory, step, [cells[step][0] for cells in pages.values() if step in cells]) for step in steps
    ]
    rows = [next(iter(cells.values()))[0] for cells in pages.values()]
    ordered = sorted(zip(rows, pages.values(), strict=True), key=lambda row: _order(row[0]))
    rendered = template("index.html.jinja").render(title=title, columns=columns, rows=ordered)
    write_whole(directory / "index.html", rendered)
    return directory / "index.html"


def _write_group(members: Sequence[Trajectory], links: Sequence[Link], path: Path, *, title: str, step: int) -> None:
    """Write the page that shows the members of a group side by side."""
    rendered = template("group.html.jinja").render(
        title=title,
        step=step,
        index_link=INDEX_FROM_PAGE,
        members=list(zip(members, links, strict=True)),
        answer=all(is_answer(member) for member in members),
    )
    write_whole(path, rendered)


def _link(trajectory: Trajectory, directory: Path, step: int) -> Link:
    """Return a link from another page of the same step."""
    address = quote(trajectory_page_path(directory, trajectory, step=step).name)
    return Link(address, page_info(trajectory, step))


def _summary(infos: Sequence[PageInfo]) -> dict[str, float | None]:
    """Return how episodes went: their number, the share that was solved, the mean score of those that have one."""
    scores = [info.score for info in infos if info.score is not None]
    return {
        "episodes": len(infos),
        "success": sum(info.success for info in infos) / len(infos),
        "score": sum(scores) / len(scores) if scores else None,
    }


def _column(directory: Path, step: int, infos: Sequence[PageInfo]) -> dict[str, float | None]:
    """Return the head of one column of the index: figures of all episodes where they are known, else of the pages."""
    path = directory / f"step={step:06d}" / SUMMARY
    summary = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else _summary(infos)
    return {"step": step, "pages": len(infos), **summary}


def _order(info: PageInfo) -> tuple[str, list[tuple[int, int, str]], int, int]:
    """Return the place of a page among others: by tag, group, seed and episode."""
    return info.tag, _natural(info.group_id), info.seed, info.episode


def _natural(text: str) -> list[tuple[int, int, str]]:
    """Return a sort key by which ``"g10"`` comes after ``"g9"``."""
    parts = re.findall(r"\d+|\D+", text)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]
