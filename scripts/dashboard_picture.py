"""Draw the dashboard of a finished run as an SVG picture.

Example::

    python scripts/dashboard_picture.py output/sokoban docs/images/dashboard.svg --at-step 24 --size 120x46
"""

from __future__ import annotations

import argparse
import io
import re
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from roll.pipelines.reporting.sample import sample_of
from roll.runs.stored import StoredRun
from roll.tracking.dashboard_state import RunState
from roll.tracking.dashboard_view import draw
from roll.tracking.local import read_metrics
from roll.tracking.progress import stage_seconds

_THEME = TerminalTheme(
    (16, 20, 27),
    (214, 220, 228),
    [(16, 20, 27), (240, 98, 98), (126, 200, 120), (229, 192, 96)]
    + [(98, 160, 240), (198, 134, 232), (86, 194, 202), (200, 206, 214)],
    [(92, 102, 116), (240, 98, 98), (126, 200, 120), (229, 192, 96)]
    + [(98, 160, 240), (198, 134, 232), (86, 194, 202), (240, 244, 248)],
)


def main() -> None:
    """Parse the command line and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run, or its metrics.jsonl: then no episode is shown")
    parser.add_argument("picture", type=Path, help="SVG file to write")
    parser.add_argument("--title", default="sokoban")
    parser.add_argument("--summary", default="", help="a few words on model, algorithm and batch")
    parser.add_argument("--at-step", type=int, help="show the run as it was after this step (default: the last)")
    parser.add_argument("--total-steps", type=int, help="steps of the whole run (default: the last step)")
    parser.add_argument("--size", default="100x26", help="columns x rows (default: %(default)s)")
    arguments = parser.parse_args()
    width, height = (int(number) for number in arguments.size.split("x"))
    run = arguments.run if arguments.run.is_dir() else None
    records = read_metrics(arguments.run if run is None else run / "logs" / "metrics.jsonl")
    state, now = state_at(records, arguments.at_step, arguments.total_steps)
    if run is not None:
        first = StoredRun.open(run).episodes(state.step, "train")[0]
        state.sample, state.review = (f"step {state.step}", sample_of(first)), f"roll view output/{run.name}"
    state.title, state.config_summary = arguments.title, arguments.summary
    console = Console(file=io.StringIO(), record=True, width=width, height=height, force_terminal=True)
    for line in draw(state, width, height, now):
        console.print(line, no_wrap=True, overflow="crop")
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    svg = console.export_svg(title=f"roll · {arguments.title}", theme=_THEME)
    # rich names a font on the network; the reader's own monospace font will do.
    arguments.picture.write_text(re.sub(r"@font-face\s*{.*?}", "", svg, flags=re.DOTALL), encoding="utf-8")


def state_at(records: list[dict[str, Any]], at_step: int | None, total_steps: int | None) -> tuple[RunState, float]:
    """Return the dashboard's state after ``at_step`` and the seconds the run had taken by then."""
    last = max((record["step"] for record in records), default=0)
    state = RunState(total_steps=total_steps or last)
    now = 0.0
    evaluation: dict[str, float] = {}
    for record in records:
        if at_step is not None and record["step"] > at_step:
            break
        metrics = {name: value for name, value in record.items() if value is not None}
        if "reward/mean" in metrics:
            state.add_step(record["step"], metrics, evaluation | stage_seconds(metrics))
            evaluation = {}
        if "val/success" in metrics:
            state.add_validation(record["step"], metrics)
            evaluation = stage_seconds(metrics)
        now = metrics.get("time/elapsed", now + metrics.get("time/step", sum(stage_seconds(metrics).values())))
    if state.step < state.total_steps:
        state.stage = ("update", now)
    return state, now


if __name__ == "__main__":
    main()
