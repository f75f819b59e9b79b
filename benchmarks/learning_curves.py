"""What a run learned: one line per run and a picture.

python benchmarks/learning_curves.py output/sokoban/multirun/*/[0-9] --out docs/images/learning_curves.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

from curves import plot_learning_curves

from roll.tracking import read_metrics


def evaluations(run: Path) -> list[dict]:
    """Return the evaluation rows of a run."""
    return [row for row in read_metrics(run / "logs" / "metrics.jsonl") if row.get("val/success") is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="output folders of runs")
    parser.add_argument("--out", type=Path, default=Path("learning_curves.png"))
    parser.add_argument("--target", type=float, default=20.0, help="points of validation success to gain")
    parser.add_argument("--minutes", type=float, default=8.0, help="time to gain them in")
    arguments = parser.parse_args()
    print("| run | steps | minutes | before | after | change | verdict |\n|---|---|---|---|---|---|---|")
    for run in arguments.runs:
        rows = evaluations(run)
        first, last = rows[0], rows[-1]
        gain = 100 * (last["val/success"] - first["val/success"])
        minutes = last["time/elapsed"] / 60
        verdict = "PASS" if gain >= arguments.target and minutes <= arguments.minutes else "FAIL"
        print(
            f"| {run.name} | {last['step']} | {minutes:.1f} | {first['val/success']:.1%} | {last['val/success']:.1%} "
            f"| {gain:+.1f} points | {verdict} |"
        )
    metrics = [run / "logs" / "metrics.jsonl" for run in arguments.runs]
    plot_learning_curves(metrics, arguments.out, labels=[run.name for run in arguments.runs])
    print(f"\nwrote {arguments.out}")


if __name__ == "__main__":
    main()
