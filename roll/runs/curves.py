"""A number of a run over its steps."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from roll.tracking.sparkline import sparkline

if TYPE_CHECKING:
    import pandas

_LOSSES: Final = ("loss", "perplexity")
"""Last parts of names of metrics that are to fall."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A metric by training step; iterating gives pairs of step and value.

    Attributes:
        name: Of the metric.
        steps: Training steps, ascending; an evaluation after n steps has step n.
        values: As many numbers.
    """

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return iter(zip(self.steps, self.values, strict=True))

    def __str__(self) -> str:
        if not self.steps:
            return f"{self.name}: no values yet"
        first, last = self.values[0], self.values[-1]
        return f"{self.name}  {first:.4g} {sparkline(self.values)} {last:.4g}  (steps {self.steps[0]}–{self.steps[-1]})"

    @property
    def best(self) -> tuple[int, float] | None:
        """The first step with the best value, and that value: the largest, of a loss the least. ``None`` of none."""
        sign = -1 if self.name.rpartition("/")[2] in _LOSSES else 1
        return max(self, key=lambda pair: sign * pair[1], default=None)

    def only(self, steps: Container[int]) -> Curve:
        """Return the same at some of the steps."""
        pairs = [pair for pair in self if pair[0] in steps]
        return Curve(self.name, tuple(step for step, _ in pairs), tuple(value for _, value in pairs))

    @property
    def last(self) -> float | None:
        """The newest value, ``None`` of no values."""
        return self.values[-1] if self.values else None

    def to_pandas(self) -> pandas.Series:
        """Return a series whose index is the step; ``curve.to_pandas().plot()`` draws it.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        import pandas

        return pandas.Series(self.values, index=pandas.Index(self.steps, name="step"), name=self.name, dtype="float64")
