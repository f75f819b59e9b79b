"""Levels of tags by difficulty: in which band a level is, and a level of a band for each number of a run."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from roll.envs import env_seed
from roll.trajectories.model import TrajectoryGroup

MOST_TRIED: Final = 10_000
"""Levels that are looked at for one of a band."""

Measure = Callable[[str, int], float]
"""Returns how difficult the level of a tag and seed is."""


class NoLevelError(RuntimeError):
    """A tag has no level of some difficulty, or hardly any."""


class Bands:
    """Parts the levels of tags by their difficulty. A tag that is not parted is one band, of the levels that it has.

    Args:
        bounds: By tag, rising: the first band has the levels up to the first bound, the last those above the last one.
        measure: Tells the difficulty of a level; always the same of the same seed.
        run_seed: Seed of the run.
    """

    def __init__(self, bounds: Mapping[str, Sequence[float]], measure: Measure, run_seed: int) -> None:
        self._bounds = {tag: tuple(values) for tag, values in bounds.items()}
        self._measure = lru_cache(maxsize=1 << 16)(measure)
        self._run_seed = run_seed
        self._parted = {self._name(tag, band): (tag, band) for tag in bounds for band in range(len(bounds[tag]) + 1)}

    def names(self, tag: str) -> list[str]:
        """Return the bands of a tag, from easy to hard: ``TAG/0``, …; the tag itself where it is not parted."""
        return [name for name, (each, _) in self._parted.items() if each == tag] or [tag]

    def of(self, group: TrajectoryGroup) -> str:
        """Return the band that the level of a group is in."""
        return self._band(group.tag, group.trajectories[0].seed) if group.trajectories else group.tag

    def level(self, name: str, number: int, most_tried: int = MOST_TRIED) -> tuple[str, int]:
        """Return the tag, and the seed of the level, of a group whose band was chosen.

        That is the first level of the band among those which seed of the run, tag and number give one after another,
        the first of which is the one that the group has where nothing is parted.

        Args:
            name: Of a band.
            number: Of the group.
            most_tried: Levels that are looked at.

        Raises:
            NoLevelError: None of them is in the band.
        """
        if name not in self._parted:
            return name, env_seed(self._run_seed, name, number, 0)
        tag, _ = self._parted[name]
        for attempt in range(most_tried):
            seed = env_seed(self._run_seed, tag, number, attempt)
            if self._band(tag, seed) == name:
                return tag, seed
        raise NoLevelError(f"none of {most_tried} levels of {tag} has {self._described(name)}")

    def _band(self, tag: str, seed: int) -> str:
        bounds = self._bounds.get(tag)
        return tag if bounds is None else self._name(tag, bisect_left(bounds, self._measure(tag, seed)))

    def _described(self, name: str) -> str:
        tag, band = self._parted[name]
        bounds = self._bounds[tag]
        above = "" if band == 0 else f" above {bounds[band - 1]:g}"
        most = "" if band == len(bounds) else f" of at most {bounds[band]:g}"
        return f"a difficulty{above}{' and' if above and most else ''}{most}"

    @staticmethod
    def _name(tag: str, band: int) -> str:
        return f"{tag}/{band}"
