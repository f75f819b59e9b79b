"""Two configurations on the same toy: where their runs part, and which keys are behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from roll.config import ConfigError, Problem, RLConfig
from roll.config.errors import RunError
from roll.differences.bisecting import smallest_cause
from roll.differences.recording import Difference, Recording, first_difference, record
from roll.differences.toy_job import ToyJob, differing


@dataclass(frozen=True, slots=True)
class Cause:
    """A difference, and what makes it.

    Attributes:
        difference: The first tensor that differs, once the causes before this one are the same.
        keys: The keys behind it, each with its two values; ``None`` for a key that is not set.
    """

    difference: Difference
    keys: dict[str, tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What became of two configurations.

    Attributes:
        causes: What makes a difference, in the order in which it shows.
        silent: Keys that differ and made none in these steps.
        runs: How many runs it took.
    """

    causes: Sequence[Cause]
    silent: Sequence[str]
    runs: int

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        causes = [
            {**asdict(cause.difference), "keys": {key: list(values) for key, values in cause.keys.items()}}
            for cause in self.causes
        ]
        return {"causes": causes, "silent": list(self.silent), "runs": self.runs}


def compare_runs(
    first: RLConfig, second: RLConfig, *, every: bool = True, say: Callable[[str], None] = lambda words: None
) -> Comparison:
    """Run two configurations on the toy, find the first tensor that differs, and the keys behind it.

    Then those keys are made the same, and what differs next is looked for, until nothing does.

    Args:
        first: A configuration of reinforcement learning.
        second: Another one of the same pipeline.
        every: Whether to go on behind the first difference.
        say: Told what goes on.

    Raises:
        ConfigError: They are of different pipelines, or one of them does not run on the toy.
        RunError: A run cannot go on.
    """
    mine, theirs = ToyJob.of(first), ToyJob.of(second)
    if mine.kind is not theirs.kind:
        names = f"{mine.frame['pipeline']} and {theirs.frame['pipeline']}"
        raise ConfigError([Problem("pipeline", f"they are of {names}, and share no toy.", "compare two of one kind.")])
    with TemporaryDirectory(prefix="roll_diff_") as folder:
        return _Search(Path(folder), mine, theirs, say).run(every)


class _Search:
    def __init__(self, folder: Path, first: ToyJob, second: ToyJob, say: Callable[[str], None]) -> None:
        self.folder, self.first, self.second, self.say = folder, first, second, say
        self.runs = 0

    def run(self, every: bool) -> Comparison:
        left = differing(self.first, self.second)
        self.say(f"{len(left)} keys of the algorithm differ.")
        causes: list[Cause] = []
        if not left:
            return Comparison((), (), 0)
        goal, here = self._record(self.second), self.first
        now = self._record(here)
        while left and (difference := first_difference(now, goal)) is not None:
            self.say(f"{difference.place}: {difference.how}.")
            cause = smallest_cause(left, partial(self._shows, here, now, difference))
            causes.append(
                Cause(difference, {key: (self.first.keys.get(key), self.second.keys.get(key)) for key in cause})
            )
            here, left = here.with_keys(self.second, frozenset(cause)), [key for key in left if key not in cause]
            if not every or not left:
                break
            now = self._record(here)
        return Comparison(tuple(causes), tuple(left), self.runs)

    def _shows(self, here: ToyJob, now: Recording, difference: Difference, keys: frozenset[str]) -> bool:
        """Tell whether a run with some of the keys parts at the same tensor."""
        try:
            found = first_difference(now, self._record(here.with_keys(self.second, keys)))
        except (ConfigError, RunError):
            return False
        return found is not None and found.place == difference.place

    def _record(self, job: ToyJob) -> Recording:
        self.runs += 1
        return record(job.config(self.folder / f"run{self.runs}"))
