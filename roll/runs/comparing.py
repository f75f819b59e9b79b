"""Several runs beside each other: in which keys they differ, and what came of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roll.config.written import OF_THE_SITTING, flat
from roll.runs.stored import StoredRun

_PLACES = (*OF_THE_SITTING, "exp_name", "logging_dir", "render_save_dir", "checkpoint_config", "tracker_kwargs")
"""Keys that say where a run writes, or what it is called."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A key, or a metric, that two runs have differently; ``None`` where one has none.

    Attributes:
        name: Its path.
        left: In the first run.
        right: In the second.
    """

    name: str
    left: Any
    right: Any


def settings(run: StoredRun) -> dict[str, Any]:
    """Return the keys of a run that make it what it is, by their paths."""
    return {key: value for key, value in flat(run.config).items() if key.split(".")[0] not in _PLACES}


def what_differs(runs: Sequence[StoredRun]) -> list[dict[str, Any]]:
    """Return for each run the keys in which it differs from others of its name; of a name alone, none."""
    by_name: dict[str, list[int]] = defaultdict(list)
    for number, run in enumerate(runs):
        by_name[run.name].append(number)
    found: list[dict[str, Any]] = [{} for _ in runs]
    for numbers in by_name.values():
        every = [settings(runs[number]) for number in numbers]
        keys = [key for key in dict.fromkeys(key for one in every for key in one) if _differs(key, every)]
        for number, one in zip(numbers, every, strict=True):
            found[number] = {key: one.get(key) for key in keys}
    return found


def differences(left: StoredRun, right: StoredRun) -> list[Difference]:
    """Return the keys of two runs that differ."""
    return _compared(settings(left), settings(right))


def final_metrics(left: StoredRun, right: StoredRun, prefixes: Sequence[str] = ("val/", "reward/")) -> list[Difference]:
    """Return the newest values of metrics, side by side, equal ones too.

    Args:
        left: A run.
        right: Another.
        prefixes: What the names of the metrics begin with.
    """
    names = sorted({*left.metric_names, *right.metric_names})
    wanted = [name for name in names if name.startswith(tuple(prefixes)) or "/" not in name]
    return [Difference(name, _last(left, name), _last(right, name)) for name in wanted]


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Return for each path as few of its last parts as tell it from the others."""
    short = {}
    for key in keys:
        parts = key.split(".")
        ends = (".".join(parts[-count:]) for count in range(1, len(parts) + 1))
        short[key] = next(end for end in ends if sum(other == end or other.endswith(f".{end}") for other in keys) == 1)
    return short


def _differs(key: str, every: Sequence[Mapping[str, Any]]) -> bool:
    nothing = object()
    first = every[0].get(key, nothing)
    return any(one.get(key, nothing) != first for one in every[1:])


def _compared(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[Difference]:
    keys = [key for key in dict.fromkeys([*left, *right]) if _differs(key, [left, right])]
    return [Difference(key, left.get(key), right.get(key)) for key in keys]


def _last(run: StoredRun, name: str) -> float | None:
    return run.curve(name).last if name in run.metric_names else None
