"""The figures of an evaluation as a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from roll.config.plain_text import plain_text
from roll.pipelines.reporting.figures import Estimate, Figures
from roll.trajectories.model import TrajectoryGroup


def evaluation_table(
    title: str,
    sampled: Sequence[TrajectoryGroup],
    greedy: Sequence[TrajectoryGroup] | None,
    metrics: Mapping[str, float],
) -> Table:
    """Return a row for each source of problems or tag of environments, and one for all.

    Args:
        title: Of the table.
        sampled: What was played as the configuration says.
        greedy: The same greedily, if it was.
        metrics: Of the sampled ones (:func:`roll.pipelines.reporting.domain_metrics.evaluation_metrics`).
    """
    table = Table(title=title, title_justify="left", box=box.ROUNDED, header_style="dim", border_style="dim")
    answers = [name for name in metrics if name.startswith(("mean@", "pass@"))]
    found = Figures.of(sampled)
    likeliest = None if greedy is None else Figures.of(greedy)
    table.add_column("source" if answers else "tag")
    for name in [*(answers or ("success",)), *(["greedy"] if likeliest else [])]:
        table.add_column(name, justify="right")
    table.add_column("responses" if answers else "episodes", justify="right")
    tags = list(found.by_tag)
    for tag in [*tags, *([""] if len(tags) != 1 else [])]:
        own = found.by_tag[tag] if tag else found.success
        cells = [_percent(metrics.get(f"{tag}/{name}" if tag else name)) for name in answers] or [_spread(own)]
        if likeliest:
            cells.append(_spread(likeliest.by_tag.get(tag) if tag else likeliest.success))
        row = (plain_text(tag) if tag else "all", *cells, str(own.episodes))
        table.add_row(*row, style=None if tag else "bold")
    return table


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _spread(estimate: Estimate | None) -> str:
    """Return a share with its standard error, where there are two groups to have one."""
    if estimate is None or not estimate.episodes:
        return ""
    error = estimate.standard_error
    return f"{estimate.mean:.1%}" + ("" if error != error else f" ± {100 * error:.1f}")
