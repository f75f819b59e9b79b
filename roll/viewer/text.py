"""The review as text: how a run goes and what failed, for a terminal without a browser and for other programs."""

from __future__ import annotations

from collections.abc import Iterator

from roll.config.plain_text import plain_text
from roll.viewer.episodes import Episodes, Row
from roll.viewer.filters import PAGE, Filter
from roll.viewer.overview import overview


def as_text(episodes: Episodes, chosen: Filter) -> Iterator[str]:
    """Yield lines: every evaluation, what failed, and the episodes that are chosen (one page of them).

    What a model or an environment wrote is shown, not obeyed: no code reaches the terminal.
    """
    about = overview(episodes, "")
    yield plain_text(episodes.run.name)
    for each in about["stages"]:
        figures = f"  {each['metric']} {each['first']:.3f} → {each['last']:.3f}" if "metric" in each else ""
        yield f"  {each['name']} ({each['pipeline']}): {each['state']}, {each['steps']} steps{plain_text(figures)}"
    if not episodes.query("select count(*) from episodes")[0][0]:
        yield "\nno episodes are stored; at last"
        for drawn in about["charts"]:
            for line in drawn.lines:
                yield f"{drawn.form(line.last):>8}  {drawn.title}{'' if line.name == drawn.title else f', {line.name}'}"
        return
    if about["evaluations"]:
        yield "\nevaluations, all their episodes"
        yield f"{'step':>8} {'episodes':>9} {'solved':>7} {'score':>8}  tag"
    for each in about["evaluations"]:
        score = "–" if each["score"] is None else f"{each['score']:.2f}"
        figures = f"{each['step']:>8} {each['number']:>9,} {each['success']:>7.1%} {score:>8}"
        yield f"{figures}  {plain_text(each['tag'])}"
    yield "\nwhat failed"
    for failure in about["failures"]:
        yield f"{failure.number:>8,} × {failure.status}  {_line(failure.error)}"
    if not about["failures"]:
        yield "    nothing"
    for problem in chosen.problems:
        yield f"\nnot filtered by {plain_text(problem)}"
    total, _, _ = episodes.sum_up(chosen)
    yield f"\n{total:,} episodes{' are chosen' if chosen.query() else ''}{f'; {PAGE} of them' if total > PAGE else ''}"
    if total:
        yield f"{'outcome':<10} {'score':>8} {'step':>10} {'turns':>5} {'tokens':>6}  episode"
    for row in episodes.select(chosen):
        yield _episode(row)


def _episode(row: Row) -> str:
    score = "–" if row.score is None else f"{row.score:.2f}"
    name = row.prompt if row.answer else f"{row.group_id}/{row.episode}"
    error = f"  {_line(row.error)}" if row.error else ""
    when = f"{row.phase} {row.step}"
    figures = f"{row.outcome:<10} {score:>8} {when:>10} {row.turns:>5} {row.tokens:>6}"
    return f"{figures}  {plain_text(row.tag)} {_line(name)}{error}"


def _line(text: str | None) -> str:
    return plain_text(" ".join((text or "").split())[:120])
