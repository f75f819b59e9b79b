"""What :func:`roll.evaluate` returns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roll.pipelines.evaluation import Results
from roll.pipelines.reporting.figures import Figures


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What :func:`roll.evaluate` found.

    Attributes:
        sampled: Tokens drawn as the configuration says.
        greedy: The likeliest token each time; ``None`` where it was not asked for.
        metrics: Every figure by name, as in ``evaluation.json``
            (:func:`roll.pipelines.reporting.domain_metrics.evaluation_metrics`).
        folder: Where it was written, ``None`` where nothing was.
    """

    sampled: Figures
    greedy: Figures | None
    metrics: Mapping[str, float] = field(repr=False)
    folder: Path | None = None

    @classmethod
    def of(cls, results: Results, *, stored: bool) -> Evaluation:
        """Describe what came of a configuration."""
        greedy = None if results.greedy is None else Figures.of(results.greedy.groups)
        folder = results.config.output_dir if stored else None
        return cls(Figures.of(results.sampled.groups), greedy, results.metrics, folder)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON; what is not a number becomes ``null``."""
        return {
            "sampled": self.sampled.to_json(),
            "greedy": None if self.greedy is None else self.greedy.to_json(),
            "metrics": {name: value if math.isfinite(value) else None for name, value in self.metrics.items()},
            "folder": None if self.folder is None else str(self.folder),
        }

    def __str__(self) -> str:
        lines = []
        for name, figures in (("sampled", self.sampled), ("greedy", self.greedy)):
            if figures is not None:
                broke = f", {figures.errors} broke" if figures.errors else ""
                lines.append(f"{name:<8} success {figures.success}, score {figures.score}{broke}")
        return "\n".join(lines)
