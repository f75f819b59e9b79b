"""What the first page shows: how the run goes, where groups teach nothing, what failed, and what it was told to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from roll.runs.comparing import differences
from roll.runs.stored import StoredRun
from roll.tracking.local import read_metrics
from roll.viewer.charts import Bins, Chart, Histogram, chart, histogram
from roll.viewer.episodes import Episodes
from roll.viewer.filters import Filter
from roll.viewer.run_folder import RunFolder

_PHASES: Final = {"val": "evaluation", "train": "training"}
_METRICS: Final = {
    "entropy": "train/policy/entropy",
    "KL of each update": "train/policy/approx_kl",
    "clipped tokens": "train/policy/clip_fraction",
    "gradient norm": "train/grad_norm",
    "tokens per second": "throughput/tokens_per_second",
}
"""Curves of the learner that are shown where a run logs them."""
_LOSSES: Final = {"training": "train/loss", "held out": "val/loss"}
"""Curves of a run that learns from rows, which have a loss that says something by itself."""
_OF_POLICY: Final = "train/loss/policy"
"""What a run that learns from rewards logs; its loss says nothing by itself."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Episodes that broke alike: how, why, how many, and the address of all of them."""

    status: str
    error: str
    number: int
    query: str


def overview(episodes: Episodes, against: str) -> dict[str, Any]:
    """Return what the first page shows.

    Args:
        episodes: The table.
        against: Name of a run beside this one whose configuration is compared; empty for none.
    """
    run = episodes.run
    beside = run.beside()
    other = RunFolder(run.home.parent / against) if against in beside else None
    newest = episodes.query("select phase, max(step) from episodes group by phase order by phase desc")
    return {
        "stages": [_stage(StoredRun(run.home / name)) for name in run.stages()],
        "evaluations": _evaluations(episodes),
        "charts": [drawn for drawn in [*_story(run), *_curves(episodes), *_learner(run)] if drawn is not None],
        "histograms": [drawn for phase, step in newest for drawn in _histograms(episodes, phase, step)],
        "failures": _failures(episodes),
        "config": run.config_text(),
        "command": str(run.record().get("command") or ""),
        "beside": beside,
        "against": against if other is not None else "",
        "differences": differences(run.config(), other.config()) if other is not None else [],
    }


def _stage(stage: StoredRun) -> dict[str, Any]:
    """Return what a stage is, how it stands, and the first and last value of what tells most of it."""
    curve = stage.main_curve
    figures = {} if curve is None else {"metric": curve.name, "first": curve.values[0], "last": curve.last}
    about = {"name": stage.folder.name, "pipeline": stage.config.get("pipeline"), "state": str(stage.state)}
    return about | {"steps": stage.steps, **figures}


def _story(run: RunFolder) -> Iterator[Chart | None]:
    """Yield how far each stage came, of a run that has some."""
    if run.stages():
        metrics = {"solved after each stage": "val/success", "held-out loss after each stage": "val/loss"}
        for title, name in metrics.items():
            found = _logged(run, name)
            yield chart(title, {title: found}, share=name == "val/success") if found else None


def _evaluations(episodes: Episodes) -> list[dict[str, Any]]:
    """Return number, share solved and mean score of all episodes of each evaluation, per tag, the newest first."""
    sql = """
        select step, tag, count(*), avg(success::int), avg(score), avg(tokens), sum(broken::int)
        from episodes where phase = 'val' group by step, tag order by step desc, tag limit 60
    """
    names = ("step", "tag", "number", "success", "score", "tokens", "broken")
    return [dict(zip(names, found, strict=True)) for found in episodes.query(sql)]


def _curves(episodes: Episodes) -> Iterator[Chart | None]:
    """Yield curves of the episodes, per phase and tag."""
    sql = """
        select phase, tag, step, avg(success::int), avg(score), avg(tokens), avg(turns)
        from episodes group by phase, tag, step order by phase desc, tag, step
    """
    rows = episodes.query(sql)
    tags = {row[1] for row in rows}
    titles = (("solved", True), ("score", False), ("sampled tokens", False), ("turns", False))
    for column, (title, share) in enumerate(titles, start=3):
        curves: dict[str, list[tuple[int, float | None]]] = {}
        for row in rows:
            name = _PHASES.get(row[0], row[0]) + (f" · {row[1]}" if len(tags) > 1 else "")
            curves.setdefault(name, []).append((row[2], row[column]))
        yield chart(title, curves, share=share)
    sql = """
        select step, avg((spread = 0)::int) from (
            select step, group_id, any_value(group_spread) spread, count(*) n
            from episodes where phase = 'train' and not broken group by step, group_id
        ) where n > 1 group by step order by step
    """
    yield chart("groups whose scores are all equal", {"training": episodes.query(sql)}, share=True)


def _logged(run: RunFolder, name: str) -> list[tuple[int, float]]:
    """Return a metric of the whole run, whose steps are its stages."""
    try:
        records = read_metrics(run.metrics_file())
    except (OSError, ValueError):  # no stage is complete, or the line is being written
        return []
    return [(record["step"], record[name]) for record in records if record.get(name) is not None]


def _learner(run: RunFolder) -> Iterator[Chart | None]:
    """Yield curves that only the learner knows."""
    try:
        records = read_metrics(run.metrics_file())
    except (OSError, ValueError):  # it logs elsewhere, or the line is being written
        return

    if run.stages():
        return  # its steps are its stages

    def of(name: str) -> list[tuple[int, float]]:
        return [(record["step"], record[name]) for record in records if name in record]

    if not any(_OF_POLICY in record for record in records):
        yield chart("loss", {title: of(name) for title, name in _LOSSES.items()})
    for title, name in _METRICS.items():
        yield chart(title, {title: of(name)})


def _histograms(episodes: Episodes, phase: str, step: int) -> Iterator[Histogram]:
    """Yield how score, sampled tokens and turns of one step are spread."""
    where = "phase = ? and step = ? and {0} is not null"
    for column, title, whole in (
        ("score", "score", False),
        ("tokens", "sampled tokens", True),
        ("turns", "turns", True),
    ):
        given = [phase, step]
        sql = f"select min({column}), max({column}) from episodes where {where.format(column)}"
        low, high = episodes.query(sql, given)[0]
        if low is None:
            continue
        bins = Bins.covering(float(low), float(high), whole=whole)
        sql = f"""
            select least(floor(({column} - ?) / ?), ?)::int bin, count(*)
            from episodes where {where.format(column)} group by bin order by bin
        """
        counts = episodes.query(sql, [bins.low, bins.size, bins.number - 1, *given])
        drawn = histogram(f"{title}, {_PHASES[phase]} step {step}", counts, bins, float(high))
        if drawn is not None:
            yield drawn


def _failures(episodes: Episodes) -> list[Failure]:
    """Return what broke, the most frequent first."""
    sql = """
        select status, coalesce(left(error, 160), ''), count(*) n from episodes
        where broken group by all order by n desc, 1, 2 limit 20
    """
    return [
        Failure(status, error, number, Filter(status=status, error=error[:80]).query())
        for status, error, number in episodes.query(sql)
    ]
