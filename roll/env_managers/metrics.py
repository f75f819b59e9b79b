"""Episode metrics from turn metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def aggregate_metrics(turns: Sequence[Mapping[str, float]], how: Mapping[str, str]) -> dict[str, float]:
    """Aggregate each metric over the turns that report it.

    Args:
        turns: Metrics of each turn, in order.
        how: ``last``, ``mean``, ``sum`` or ``max`` by metric; unnamed metrics are averaged, except ``success``, whose
            last value counts.

    Returns:
        One number per metric that any turn reports.
    """
    series: dict[str, list[float]] = {}
    for metrics in turns:
        for name, value in metrics.items():
            series.setdefault(name, []).append(value)
    return {name: _aggregate(values, how.get(name) or _default(name)) for name, values in series.items()}


def _default(name: str) -> str:
    return "last" if name == "success" else "mean"


def _aggregate(values: Sequence[float], how: str) -> float:
    if how == "last":
        return values[-1]
    if how == "max":
        return max(values)
    total = sum(values)
    return total / len(values) if how == "mean" else total
