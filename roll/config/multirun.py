"""The jobs of a multirun: what each was, how it ended and what came of it, as a table at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

FINISHED: Final = "finished"

_SCORES: Final = ("val/success", "success", "val/reward", "reward", "rollout/reward")


@dataclass(slots=True)
class Job:
    """One job.

    Attributes:
        number: Its number within the multirun.
        folder: Its ``output_dir``.
        overrides: What it was started with, ``key=value``.
        state: How it ended.
        result: What ``run`` returned.
    """

    number: int
    folder: Path
    overrides: Sequence[str]
    state: str = "began"
    result: Any = None

    def values(self) -> dict[str, str]:
        """Return the overrides by key."""
        pairs = (override.lstrip("+").partition("=") for override in self.overrides)
        return {key: value for key, _, value in pairs}


@dataclass(slots=True)
class Jobs:
    """The jobs of a multirun so far.

    Attributes:
        jobs: In the order in which they ran.
        code: Exit code of the worst job.
    """

    jobs: list[Job] = field(default_factory=list)
    code: int = 0

    def differing(self) -> list[str]:
        """Return the keys in which the jobs differ."""
        values = [job.values() for job in self.jobs]
        keys = dict.fromkeys(key for given in values for key in given)
        return [key for key in keys if len({given.get(key) for given in values}) > 1]

    def show(self) -> None:
        """Print the table to standard output."""
        # Imported here: the configuration of a single run needs no tables.
        from rich import box
        from rich.console import Console
        from rich.table import Table

        table = Table(box=box.ROUNDED, header_style="dim", border_style="dim")
        keys = self.differing()
        for name in ("job", *keys, "state", "result"):
            table.add_column(name, overflow="fold")
        for job in self.jobs:
            values = job.values()
            table.add_row(str(job.number), *(values.get(key, "–") for key in keys), job.state, score(job.result))
        console = Console(force_jupyter=False)
        console.print(table)
        if self.jobs:
            console.print(f"Their folders: {self.jobs[0].folder.parent}/<job>", soft_wrap=True, highlight=False)


def score(result: Any) -> str:
    """Return the figure that sums a result up: of the last evaluation, else of the last step.

    Args:
        result: What ``run`` returned: a :class:`roll.tracking.RunSummary`, figures by name, or anything else.
    """
    figures = getattr(result, "after", result)
    if isinstance(figures, Mapping):
        for name in _SCORES:
            if name in figures:
                form = "{:.1%}" if name.endswith("success") else "{:.3f}"
                return f"{name.rpartition('/')[2]} {form.format(figures[name])}"
        for name, value in figures.items():
            if str(name).startswith(("mean@", "val/mean@")):
                return f"{str(name).rpartition('/')[2]} {value:.1%}"
    return "–"
