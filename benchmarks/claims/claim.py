"""What a claim is, how its runs are measured, and the page that is written of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import roll

PAGES = Path(__file__).resolve().parents[2] / "docs" / "experiments" / "claims"
BEGIN, END = "<!-- measured: written by benchmarks/claims/run.py -->", "<!-- measured: end -->"


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a run.

    Attributes:
        name: In words.
        metric: One of the run's metrics.
        last: Mean of so many of its newest values.
        percent: Shown as a percentage.
    """

    name: str
    metric: str
    last: int = 1
    percent: bool = False

    def of(self, run: roll.StoredRun) -> float:
        """Return it of a run that has ended."""
        return fmean(run.curve(self.metric).values[-self.last :])

    def shown(self, values: Sequence[float]) -> str:
        """Return mean ± standard error over seeds."""
        scale, unit = (100, " %") if self.percent else (1, "")
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        return f"{scale * fmean(values):.3g} ± {scale * error:.2g}{unit}"


@dataclass(frozen=True, slots=True)
class Claim:
    """What a paper says, scaled down to jobs of minutes.

    Attributes:
        name: Of its page.
        job: The configuration that all arms have in common.
        common: Keys of all arms.
        arms: Keys of each arm by its name; the paper compares them.
        measures: What is measured of each run; the first decides.
    """

    name: str
    job: str
    common: Mapping[str, Any]
    arms: Mapping[str, Mapping[str, Any]]
    measures: Sequence[Measure]

    def run(self, arm: str, seed: int, folder: Path, changes: Mapping[str, Any]) -> dict[str, float]:
        """Train one arm with one seed; return its measures by metric."""
        keys = {**self.common, **self.arms[arm], **changes, "seed": seed, "output_dir": str(folder)}
        run = roll.train(self.job, overrides={"progress": "none", "resume_from_checkpoint": False, **keys})
        return {measure.metric: round(measure.of(run), 5) for measure in self.measures}

    @property
    def figures(self) -> Path:
        """Where the figures of all seeds are kept."""
        return PAGES / f"{self.name}.json"

    def read(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return arm → seed → metric → value, of all that was measured."""
        if not self.figures.exists():
            return {}
        found: dict[str, dict[str, dict[str, float]]] = json.loads(self.figures.read_text(encoding="utf-8"))
        return found

    def keep(self, arm: str, seed: int, values: dict[str, float]) -> None:
        """Add one run to the figures."""
        figures = self.read()
        figures.setdefault(arm, {})[str(seed)] = values
        lines = [
            f"{json.dumps(arm)}: {{\n"
            + ",\n".join(f"  {json.dumps(s)}: {json.dumps(v)}" for s, v in seeds.items())
            + "\n}"
            for arm, seeds in figures.items()
        ]
        PAGES.mkdir(parents=True, exist_ok=True)
        self.figures.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")

    def table(self) -> str:
        """Return the figures as Markdown: each arm's mean over its seeds, and by how many errors it differs."""
        figures = self.read()
        head = ["arm", "keys", "seeds", *(measure.name for measure in self.measures)]
        lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        for arm, seeds in figures.items():
            keys = ", ".join(f"`{key}={_written(value)}`" for key, value in self.arms[arm].items())
            shown = (measure.shown([values[measure.metric] for values in seeds.values()]) for measure in self.measures)
            lines.append("| " + " | ".join([arm, keys, str(len(seeds)), *shown]) + " |")
        return "\n".join(lines)

    def write(self) -> None:
        """Write the table into the claim's page, between its marks."""
        page = PAGES / f"{self.name}.md"
        before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        _, end, after = rest.partition(END)
        if not end:
            raise SystemExit(f"{page} has no {BEGIN} … {END}")
        page.write_text(f"{before}{begin}\n\n{self.table()}\n\n{end}{after}", encoding="utf-8")


def _written(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
