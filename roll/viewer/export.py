"""A review in one file: overview, table, episodes with their tokens, and groups. It needs no server and no network.

What a model wrote is only text in it: templates escape everything, and the file forbids itself any script and style but
its own, which hold no data.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

from roll.viewer.episodes import Episodes, Group, Row
from roll.viewer.filters import Filter
from roll.viewer.notes import Notes
from roll.viewer.pages import Pages
from roll.viewer.parts import EpisodeView
from roll.viewer.rendering import Addresses, static_text, templates, write_whole

EPISODES: Final = 100
"""Episodes in a file where nobody asks for another number."""
MEGABYTES: Final = 32
"""Size from which on a file takes no more episodes: a browser is slow at opening a larger one."""
_TOKENS: Final = 1_000
"""Tokens of a turn's prompt, and of its response, in a file."""


Part = tuple[str, str]
"""A page: by what an address names it, and what it shows."""


class FileAddresses(Addresses):
    """Where things are in a file: behind the ``#`` of its address.

    Args:
        rows: The episodes that are in it.
    """

    in_file = True
    tokens_at_most = _TOKENS

    def __init__(self, rows: Sequence[Row]) -> None:
        self._places = {row.id: place for place, row in enumerate(rows)}
        groups = dict.fromkeys(group_of(row) for row in rows)
        self._groups = {group: place for place, group in enumerate(groups)}

    def holds(self, what: object) -> bool:
        """Whether an episode is in the file."""
        return not isinstance(what, Row) or what.id in self._places

    def views(self) -> tuple[tuple[str, str], ...]:
        """Return the views of the run: name and address."""
        return (("Overview", "#overview"), ("Episodes", "#episodes"))

    def overview(self) -> str:
        """Return where the overview is."""
        return "#overview"

    def table(self, query: str) -> str:
        """Return where the table is; its script reads the query."""
        return f"#episodes{query}"

    def episode(self, row: Row, query: str, tokens: bool = False) -> str:
        """Return where an episode is, or its tokens; nothing for one that is not in the file."""
        return f"#{'tokens' if tokens else 'episode'}-{self._places[row.id]}" if row.id in self._places else ""

    def tokens(self, row: Row, query: str, whole: bool = False) -> str:
        """Return where its tokens are; all of them are nowhere."""
        return "" if whole else self.episode(row, query, tokens=True)

    def whole(self, row: Row, query: str) -> str:
        """Return nothing: what is not shown at first is not in the file."""
        return ""

    def note(self, row: Row, query: str) -> str:
        """Return nothing: a file keeps no notes but those that it was made with."""
        return ""

    def group(self, row: Row) -> str:
        """Return where its group is."""
        return f"#group-{self._groups[group_of(row)]}"


class FilePages(Pages):
    """Pages of a file: what several of them show is read once.

    Args:
        episodes: The table.
        rows: The episodes that are in the file.
        common: What is the same on all pages.
    """

    def __init__(self, episodes: Episodes, rows: Sequence[Row], **common: Any) -> None:
        notes = Notes(episodes.run.notes_file)
        super().__init__(episodes, FileAddresses(rows), notes, "part.html.jinja", **common)
        self._members = episodes.members_of(map(group_of, rows))
        self._group: Group | None = None
        self._views: dict[int, EpisodeView] = {}

    @cached_property
    def run_name(self) -> str:
        """What the run is called."""
        return super().run_name

    def members(self, phase: str, step: int, group: str) -> list[Row]:
        """Return the members of a group."""
        return self._members[phase, step, group]

    def view(self, row: Row) -> EpisodeView:
        """Return all of an episode; those of one group are kept, and no more: they may be long."""
        if self._group != group_of(row):
            self._group, self._views = group_of(row), {}
        if row.id not in self._views:
            self._views[row.id] = super().view(row)
        return self._views[row.id]


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: where, how many episodes, and how many that were chosen it does not hold."""

    path: Path
    episodes: int
    left_out: int


def export(
    episodes: Episodes,
    path: Path,
    chosen: Filter,
    rows: Sequence[Row] | None = None,
    most: int = EPISODES,
    megabytes: float = MEGABYTES,
) -> Exported:
    """Write the review of a run as one HTML file, whole or not at all.

    Args:
        episodes: The table, with everything read.
        path: The file; one that exists is replaced.
        chosen: Which episodes, and in which order.
        rows: Those of them that are to be in the file; ``None`` for the first of the table.
        most: Episodes that are taken at most.
        megabytes: Size from which on no more episodes are taken. The first one is, whatever its size.

    Returns:
        What was written.
    """
    total = episodes.sum_up(chosen)[0]
    wanted = list((episodes.first(chosen, most) if rows is None else rows)[:most])
    shown, sections, groups = _fitting(episodes, wanted, megabytes * 1e6)
    held = {"held": len(shown), "of": total, "chosen_by": chosen.query().removeprefix("?")}
    pages = FilePages(episodes, shown, **held)
    first = [("overview", pages.overview("")), ("episodes", pages.table(Filter(), shown))]
    script, style = static_text("review.js"), static_text("review.css")
    rendered = (
        templates()
        .get_template("file.html.jinja")
        .render(
            run=episodes.run.name,
            urls=pages.urls,
            policy=_policy(script, style),
            script=Markup(script),
            style=Markup(style),
            views=pages.urls.views(),
            parts=[(name, Markup(page)) for name, page in (*first, *sections, *groups)],
        )
    )
    write_whole(path, rendered)
    return Exported(path, len(shown), total - len(shown))


def group_of(row: Row) -> Group:
    """Return what the members of a group have in common."""
    return row.phase, row.step, row.group_id


def _fitting(episodes: Episodes, wanted: Sequence[Row], size: float) -> tuple[list[Row], list[Part], list[Part]]:
    """Return the episodes that fit, their pages, and those of their groups."""
    pages, sections, used = FilePages(episodes, wanted), list[Part](), 0
    groups = dict.fromkeys(map(group_of, wanted), "")
    last = {group_of(row): place for place, row in enumerate(wanted)}
    for place, row in enumerate(wanted):
        made = _episode(pages, wanted, place)
        used += sum(len(page) for _, page in made)
        if place and used > size:
            fits = wanted[:place]  # and the last of them leads to none behind it
            pages = FilePages(episodes, fits)
            made = _episode(pages, fits, place - 1)
            groups = {group: pages.group(pages.members(*group)) for group in dict.fromkeys(map(group_of, fits))}
            return list(fits), [*sections[: -len(made)], *made], _numbered(groups)
        sections += made
        if place == last[group_of(row)]:  # while its view is known
            groups[group_of(row)] = pages.group(pages.members(*group_of(row)))
    return list(wanted), sections, _numbered(groups)


def _episode(pages: Pages, rows: Sequence[Row], place: int) -> list[Part]:
    row, view = rows[place], pages.view(rows[place])
    where = {
        "query": "",
        "before": rows[place - 1] if place else None,
        "after": rows[place + 1] if place + 1 < len(rows) else None,
        "place": place + 1,
        "total": len(rows),
    }
    return [
        (f"episode-{place}", pages.episode(row, view, where)),
        (f"tokens-{place}", pages.tokens(row, view, where)),
    ]


def _numbered(groups: Mapping[Group, str]) -> list[Part]:
    return [(f"group-{place}", page) for place, page in enumerate(groups.values())]


def _policy(script: str, style: str) -> str:
    """Return what the file may load and run: its own script and style, known by their digests, and images inside."""
    named = {kind: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for kind, text in
             (("script", script), ("style", style))}  # fmt: skip
    return (
        f"default-src 'none'; script-src 'sha256-{named['script']}'; style-src 'sha256-{named['style']}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
