"""Success against sampled tokens, with replay and without, on the same environment and from the same weights.

python benchmarks/replay.py --seeds 42 1 2                        # two runs for each seed: a quarter of an hour or more
python benchmarks/replay.py --set max_steps=4 eval_steps=2        # only to see that it works

The configuration `replay` is the configuration `sokoban` with half of every step replayed. One line for each run: how
many tokens it had sampled when an evaluation first showed the success that is aimed at, which is what the run without
replay of the same seed ends with, less `--slack`; and what all of it sampled and ended with.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pyarrow.parquet as pq

import roll
from roll.tracking import read_metrics
from roll.trajectories.store import trajectory_path

WITHOUT, WITH = "sokoban", "replay"


@dataclass(frozen=True, slots=True)
class Point:
    """An evaluation.

    Attributes:
        tokens: Sampled for training until then.
        success: What it found.
    """

    tokens: int
    success: float


def measure(name: str, seed: int, folder: Path, changes: Sequence[str]) -> list[Point]:
    """Train, and return the evaluations."""
    run = roll.train(
        name, seed=seed, output_dir=str(folder / f"{name}-{seed}"), overrides=["trajectory_dump_steps=1", *changes]
    )
    rows = read_metrics(run.folder / "logs" / "metrics.jsonl")
    found = {int(row["step"]): row["val/success"] for row in rows if row.get("val/success") is not None}
    sampled = [0]
    for step in range(1, run.steps + 1):
        # What is replayed is stored where it was sampled.
        column = pq.read_table(trajectory_path(run.folder, step, "train"), columns=["completion_tokens"])
        sampled.append(sampled[-1] + sum(column["completion_tokens"].to_pylist()))
    return [Point(sampled[step], found[step]) for step in sorted(found)]


def tokens_until(points: Sequence[Point], success: float) -> int | None:
    """Return what was sampled when an evaluation first showed a success; ``None`` if none did."""
    return next((point.tokens for point in points if point.success >= success), None)


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[42])
    parser.add_argument("--folder", type=Path, default=Path("output") / "replay_benchmark", help="where the runs go")
    parser.add_argument("--slack", type=float, default=0.02, help="of success, below what is aimed at")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="other keys for all runs")
    parser.add_argument("--replay", nargs="+", default=[], metavar="KEY=VALUE", help="other keys for those with replay")
    arguments = parser.parse_args()
    print("| configuration | seed | aimed at | tokens until then | tokens in all | success in the end |")
    print("|---|---|---|---|---|---|")
    saved = []
    for seed in arguments.seeds:
        runs = {
            WITHOUT: measure(WITHOUT, seed, arguments.folder, arguments.set),
            WITH: measure(WITH, seed, arguments.folder, [*arguments.set, *arguments.replay]),
        }
        aim = runs[WITHOUT][-1].success - arguments.slack
        until = {name: tokens_until(points, aim) for name, points in runs.items()}
        for name, points in runs.items():
            reached = "never" if until[name] is None else f"{until[name]:,}"
            last = points[-1]
            print(f"| `{name}` | {seed} | {aim:.1%} | {reached} | {last.tokens:,} | {last.success:.1%} |", flush=True)
        before, after = until[WITHOUT], until[WITH]
        if before and after is not None:
            saved.append(1 - after / before)
    if saved:
        share = f"{len(saved)} of {len(arguments.seeds)}"
        print(f"\n{share} seeds got there with replay, with {fmean(saved):.0%} fewer tokens")
    else:
        print("\nnothing to compare: no seed got there with replay, or what is aimed at was there from the start")


if __name__ == "__main__":
    main()
