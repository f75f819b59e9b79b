"""What each page of the review shows, rendered: for the server, and for a file that holds them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from roll.config import ConfigError
from roll.trajectories.pairs import CHOSEN, REJECTED
from roll.viewer.branches import command, read_branches
from roll.viewer.desk import Desk
from roll.viewer.episodes import Episodes, Row
from roll.viewer.filters import OUTCOMES, PAGE, Filter
from roll.viewer.groups import compare
from roll.viewer.notes import Note, Notes, apply
from roll.viewer.overview import overview
from roll.viewer.parts import TOKENS, WHOLE, EpisodeView, token_views, view_episode
from roll.viewer.rendering import Addresses, templates

_SERVED: Final = "base.html.jinja"
WAITING: Final = "Waiting"
"""The view of groups that wait for a decision."""


class Pages:
    """Renders the pages of one run.

    Args:
        episodes: Its table.
        urls: Where pages are.
        notes: What people say of its episodes.
        layout: Template around a page.
        more_views: Views that not every run has: name and address.
        common: What is the same on all of them beside what is said here.
    """

    def __init__(
        self,
        episodes: Episodes,
        urls: Addresses,
        notes: Notes,
        layout: str = _SERVED,
        more_views: Sequence[tuple[str, str]] = (),
        **common: Any,
    ) -> None:
        self._more_views = more_views
        self.episodes = episodes
        self.urls = urls
        self.notes = notes
        self._layout = layout
        self._common = common

    @property
    def run_name(self) -> str:
        """What the run is called."""
        return self.episodes.run.name

    def overview(self, against: str) -> str:
        """Return how the run goes, and the difference of its configuration from that of the run ``against``."""
        values = overview(self.episodes, against)
        values |= {"total": self.episodes.sum_up(Filter())[0], "pending": self.episodes.pending}
        if self.urls.in_file:
            values["beside"] = []
        return self.render("overview.html.jinja", "Overview", values)

    def table(self, chosen: Filter, rows: Sequence[Row] | None = None) -> str:
        """Return the page of the table that ``chosen`` asks for, or the one with ``rows``."""
        noted, problems = self._noted(chosen.problems)
        total, score, success = self.episodes.sum_up(chosen)
        shown = self.episodes.select(chosen) if rows is None else rows
        values = {
            "chosen": asdict(chosen) | {"query": chosen.query, "problems": problems},
            "choices": self.episodes.choices(),
            "outcomes": OUTCOMES.items(),
            "labels": sorted({label for note in noted.values() for label in note.labels}),
            "noted": {row.id: noted[row.id] for row in shown if row.id in noted},
            "differing": self.episodes.differing() if self.urls.in_file else set(),
            "query": chosen.without_page().query(),
            "rows": shown,
            "prompts": any(row.answer for row in shown),
            "total": total,
            "score": score,
            "success": success,
            "page": chosen.page_number,
            "pages": max(1, -(-total // PAGE)),
            "any": bool(self.episodes.query("select 1 from episodes limit 1")),
            "pending": self.episodes.pending,
            "unreadable": list(self.episodes.unreadable.items()),
        }
        return self.render("table.html.jinja", "Episodes", values)

    def episode(self, row: Row, view: EpisodeView, where: Mapping[str, Any]) -> str:
        """Return an episode turn by turn; ``where`` it is among others comes from :meth:`place`."""
        members = [each for each in self.members(row.phase, row.step, row.group_id) if self.urls.holds(each)]
        noted, _ = self._noted([])
        known = {label for note in noted.values() for label in note.labels} | {CHOSEN, REJECTED}
        values = {"members": members, "shows_tokens": False, "note": noted.get(row.id), "known": sorted(known)}
        (home, alone), actions = self.episodes.alone(row), [turn.turn.action for turn in view.turns]
        values |= {"branch": read_branches(home, alone, actions), "branch_command": command(home, alone)}
        return self._episode(row, view, where, values)

    def tokens(self, row: Row, view: EpisodeView, where: Mapping[str, Any]) -> str:
        """Return an episode token by token."""
        trains = row.phase == "train" and not row.broken
        why = "" if trains else "it is an evaluation" if row.phase == "val" else "it broke"
        learned = self.episodes.learned(row)
        values = {
            "shows_tokens": True,
            "tokens": [
                (turn, *token_views(turn.turn, view.texts, learned.get(turn.number - 1))) for turn in view.turns
            ],
            "learned": bool(learned),
            "ratios": any(each.log_probs is not None for each in learned.values()),
            "entropies": any(each.entropies is not None for each in learned.values()),
            "left_out": any(not all(each.trained) for each in learned.values()),
            "most": self.urls.tokens_at_most or TOKENS,
            "trains": trains,
            "trained": "Sampled tokens were trained on; what the policy was shown was not."
            if trains
            else f"Nothing of this episode was trained on: {why}.",
        }
        return self._episode(row, view, where, values)

    def group(self, rows: Sequence[Row]) -> str:
        """Return the members of a group side by side."""
        first = rows[0]
        values = {"phase": first.phase, "step": first.step, "group": first.group_id}
        shown = [row for row in rows if self.urls.holds(row)]
        values |= {"linked": True, **compare(rows, shown, self.view)}
        return self.render("group.html.jinja", "", values)

    def waiting(self, desk: Desk) -> str:
        """Return the groups that wait for a decision."""
        return self.render("waiting.html.jinja", WAITING, {"listed": desk.listed()})

    def waiting_group(self, desk: Desk, group_id: str) -> str:
        """Return a group that waits, or waited, with what may be decided about it.

        Raises:
            StoreError: There is none of this id.
        """
        return self.render("waiting_group.html.jinja", WAITING, {"linked": False, **desk.look(group_id)})

    def place(self, row: Row, chosen: Filter) -> dict[str, Any]:
        """Return where an episode is among those that ``chosen`` chooses."""
        chosen = replace(chosen, page="")
        before, after, number, total = self.episodes.neighbours(row, chosen)
        return {"query": chosen.query(), "before": before, "after": after, "place": number, "total": total}

    def members(self, phase: str, step: int, group: str) -> list[Row]:
        """Return the members of a group."""
        return self.episodes.members(phase, step, group)

    def view(self, row: Row) -> EpisodeView:
        """Return all of an episode.

        Raises:
            FileNotFoundError: The run has just replaced its file.
            IndexError: The same.
        """
        return view_episode(*self.episodes.read(row))

    def render(self, template: str, here: str, values: Mapping[str, Any]) -> str:
        """Return a page.

        Args:
            template: Its template.
            here: Which of the views of the run it is; empty for none.
            values: What it shows.
        """
        common = {"run": self.run_name, "version": self.episodes.version, "here": here, "limit": WHOLE}
        common["views"] = [*self.urls.views(), *self._more_views]
        found = templates().get_template(template)
        return found.render(layout=self._layout, urls=self.urls, **common, **self._common, **values)

    def _noted(self, problems: list[str]) -> tuple[dict[int, Note], list[str]]:
        """Return notes by the number of their episode, and ``problems`` with what is wrong with the notes."""
        try:
            return {row.id: note for row, note in apply(self.notes, self.episodes)}, problems
        except ConfigError as error:
            return {}, [*problems, str(error)]

    def _episode(self, row: Row, view: EpisodeView, where: Mapping[str, Any], values: Mapping[str, Any]) -> str:
        return self.render("episode.html.jinja", "", {"row": row, "view": view, "whole": False, **where, **values})
