"""What of a run is shown, and in which order: from the address of a page and back to it, and to SQL."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from roll.config import ConfigError, Problem

PAGE: Final = 50
"""Rows of a page of the table."""

RANGES: Final = {"step": "step", "score": "score", "version": "newest", "tokens": "tokens", "turns": "turns"}
"""Filters that take a number or a range: their name → the column."""

SORTS: Final = ("step", "tag", "group", "score", "turns", "tokens", "version", "status")
"""What the table can be sorted by."""

_COLUMNS: Final = {"group": "group_id", "version": "newest"}
_OUTCOMES: Final = {
    "solved": "success",
    "unsolved": "not success and not broken",
    "broken": "broken",
    "differing": "group_spread > 0",
    "noted": "id in (select id from labelled)",
}
OUTCOMES: Final = {
    "solved": "solved or right",
    "unsolved": "not solved, or wrong",
    "broken": "broken",
    "differing": "in a group whose scores differ",
    "noted": "with a note",
}
"""What a person can ask of the end of an episode."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A choice of episodes and their order. Every field is what the address holds: text, empty for any.

    Attributes:
        phase: ``train`` or ``val``.
        tag: Environment tag or source.
        status: How it ended.
        seat: The seat that it had in a game with several.
        outcome: One of :data:`OUTCOMES`.
        error: Text that the error holds, whatever its case.
        text: Text that the episode holds (prompt, observation, response, action, error), whatever its case and where
            lines end.
        group: Group.
        step: A number, or a range: ``4``, ``4..8``, ``..8``, ``4..``.
        score: The same.
        version: The same, of the newest weights that sampled it.
        tokens: The same, of sampled tokens.
        turns: The same.
        label: A label that somebody gave it.
        sort: One of :data:`SORTS`; with a minus from high to low.
        page: Which page of the table, from 1.
    """

    phase: str = ""
    tag: str = ""
    status: str = ""
    seat: str = ""
    outcome: str = ""
    error: str = ""
    text: str = ""
    group: str = ""
    step: str = ""
    score: str = ""
    version: str = ""
    tokens: str = ""
    turns: str = ""
    label: str = ""
    sort: str = ""
    page: str = ""

    @classmethod
    def read(cls, query: Mapping[str, str]) -> Filter:
        """Return the filter of an address; what it does not know is left out."""
        return cls(**{field.name: query.get(field.name, "").strip() for field in fields(cls)})

    @classmethod
    def parse(cls, where: str) -> Filter:
        """Return the filter of a query as somebody typed it: ``outcome=broken&step=8..``.

        Raises:
            ConfigError: It names something that episodes are not filtered by, or not as it is.
        """
        given = dict(parse_qsl(where.removeprefix("?"), keep_blank_values=True))
        chosen = cls.read(given)
        known = [field.name for field in fields(cls)]
        problems = [f"{name}: it is none of {', '.join(known)}" for name in given if name not in known]
        if where.removeprefix("?") and not given:
            problems.append(f"{where!r} has no =")
        if problems or chosen.problems:
            fix = "write what the address of the table has behind its ?, such as outcome=broken&step=8..16."
            raise ConfigError([Problem("--where", each, fix, where) for each in (*problems, *chosen.problems)])
        return chosen

    def query(self, **changes: str) -> str:
        """Return the query of an address, ``?tag=Sokoban&step=4..8``, or nothing where nothing is chosen."""
        changed = {name: value for name, value in asdict(replace(self, **changes)).items() if value}
        return f"?{urlencode(changed)}" if changed else ""

    def without_page(self) -> Filter:
        """Return the filter of the whole table."""
        return replace(self, page="")

    @property
    def page_number(self) -> int:
        """The page, at least 1."""
        return max(1, int(self.page)) if self.page.isdecimal() and len(self.page) < 10 else 1

    @property
    def problems(self) -> list[str]:
        """What cannot be understood, in words; it is not filtered by then."""
        found = [
            f"{name}: {getattr(self, name)!r} is neither a number nor a range such as 4..8"
            for name in RANGES
            if getattr(self, name) and read_range(getattr(self, name)) is None
        ]
        if self.outcome and self.outcome not in _OUTCOMES:
            found.append(f"outcome: {self.outcome!r} is none of {', '.join(_OUTCOMES)}")
        if self.sort and self.sort.removeprefix("-") not in SORTS:
            found.append(f"sort: {self.sort!r} is none of {', '.join(SORTS)}")
        return found

    def where(self) -> tuple[str, list[Any]]:
        """Return an SQL condition on the table of episodes, and its parameters."""
        parts, values = ["true"], []
        for name in ("phase", "tag", "status", "seat", "group"):
            if getattr(self, name):
                parts.append(f"{_COLUMNS.get(name, name)} = ?")
                values.append(getattr(self, name))
        for name, column in RANGES.items():
            found = read_range(getattr(self, name))
            if found is not None:
                parts.append(f"{column} between ? and ?")
                values += found
        if self.outcome in _OUTCOMES:
            parts.append(f"({_OUTCOMES[self.outcome]})")
        if self.error:
            parts.append("contains(lower(error), ?)")
            values.append(self.error.lower())
        if self.label:
            parts.append("id in (select id from labelled where label = ?)")
            values.append(self.label)
        if self.text:
            parts.append("id in (select id from texts where contains(text, ?))")
            values.append(" ".join(self.text.lower().split()))
        return " and ".join(parts), values

    def order(self) -> str:
        """Return what SQL orders by; newest first where nothing is asked for. The same filter has the same order."""
        wanted = self.sort.removeprefix("-")
        first = ""
        if wanted in SORTS:
            direction = "desc" if self.sort.startswith("-") else "asc"
            first = f"{_COLUMNS.get(wanted, wanted)} {direction} nulls last, "
        return f"{first}step desc, phase desc, tag, natural_group, group_id, episode"


def read_range(text: str) -> tuple[float, float] | None:
    """Return the lowest and the highest number of ``4``, ``4..8``, ``..8`` or ``4..``; ``None`` for anything else."""
    low, dots, high = text.replace(" ", "").partition("..")
    if not dots:
        high = low
    try:
        edges = float(low) if low else -math.inf, float(high) if high else math.inf
    except ValueError:
        return None
    return None if not (low or high) or any(map(math.isnan, edges)) else edges
