"""Several runs beside each other: in which keys they differ, and what came of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from roll.config.trainer_keys import NAMED_BLOCKS
from roll.config.written import OF_THE_SITTING
from roll.runs.stored import StoredRun

_PLACES: Final = (*OF_THE_SITTING, "exp_name", "logging_dir", "render_save_dir", "checkpoint_config", "tracker_kwargs")
"""Keys that say where a run writes, or what it is called."""

MAIN_METRICS: Final = ("val/", "reward/", "env/", "train/loss", "train/grad_norm", "train/policy/", "kl/", "time/step")
"""What the names of metrics begin with that tell two runs apart at a glance."""

_ABSENT: Final = object()


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


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections and keys of a configuration that make a run what it is."""
    return {key: value for key, value in config.items() if key not in (*_PLACES, *NAMED_BLOCKS)}


def what_differs(runs: Sequence[StoredRun]) -> list[dict[str, Any]]:
    """Return for each run the keys in which it differs from others of its name; of a name alone, none.

    A section that one of them does not have is one key, however much is in it.
    """
    by_name: dict[str, list[int]] = defaultdict(list)
    for number, run in enumerate(runs):
        by_name[run.name].append(number)
    found: list[dict[str, Any]] = [{} for _ in runs]
    for numbers in by_name.values():
        for key, values in _differing([settings(runs[number].config) for number in numbers]):
            for number, value in zip(numbers, values, strict=True):
                found[number][key] = value
    return found


def differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[Difference]:
    """Return the keys of two configurations that differ; a section that one of them does not have is one key."""
    return [Difference(key, one, other) for key, (one, other) in _differing([settings(left), settings(right)])]


def final_metrics(left: StoredRun, right: StoredRun, prefixes: Iterable[str] = ("",)) -> list[Difference]:
    """Return the newest values of metrics, side by side, equal ones too.

    Args:
        left: A run.
        right: Another.
        prefixes: What the names of the metrics begin with; all of them by default.
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
        alone = (end for end in ends if sum(other == end or other.endswith(f".{end}") for other in keys) == 1)
        short[key] = next(alone, key)  # whole, where all of it ends another key
    return short


def _differing(every: Sequence[Mapping[str, Any]], path: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Yield the paths at which mappings differ, and what each has there; ``None`` where it has nothing."""
    for key in dict.fromkeys(key for one in every for key in one):
        values = [one.get(key, _ABSENT) for one in every]
        if all(isinstance(value, Mapping) for value in values):
            yield from _differing(values, f"{path}{key}.")
        elif any(value != values[0] for value in values[1:]):
            yield f"{path}{key}", [None if value is _ABSENT else value for value in values]


def _last(run: StoredRun, name: str) -> float | None:
    return run.curve(name).last if name in run.metric_names else None
