"""Success against sampled tokens, with replay and without, on the same environment and from the same weights.

python benchmarks/replay.py --seeds 42 1 2                        # two runs for each seed: 20 minutes or more
python benchmarks/replay.py --set max_steps=4 eval_steps=2        # only to see that it works

The configuration `replay` is the configuration `sokoban` with half of every step replayed. One line for each run: how
many tokens it had sampled

* when an evaluation first showed the success that is aimed at, which is what the run without replay of the same seed
  ends with, less `--slack`; evaluations are few, so this is coarse;
* when of the last 1,024 episodes that it sampled, those that are replayed not counted again, `--sampled` succeeded.

`--read` reads the runs that lie in `--folder` in place of training them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import pyarrow.parquet as pq

import roll
from roll.tracking import read_metrics
from roll.trajectories.store import trajectory_path

WITHOUT, WITH = "sokoban", "replay"
WINDOW = 1024
"""Episodes of which a success is the mean."""


@dataclass(frozen=True, slots=True)
class Point:
    """An evaluation.

    Attributes:
        tokens: Sampled for training until then.
        success: What it found.
    """

    tokens: int
    success: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of a run.

    Attributes:
        evaluations: In the order of their steps.
        tokens: Sampled until the end of each training episode, ``[episodes]``; steps are in the order of their files.
        success: Whether it succeeded, ``[episodes]`` bool.
    """

    evaluations: list[Point]
    tokens: np.ndarray
    success: np.ndarray

    def tokens_until(self, share: float) -> int | None:
        """Return what was sampled when this share of the last :data:`WINDOW` succeeded; ``None`` if never."""
        succeeded = np.concatenate(([0], np.cumsum(self.success)))
        shares = (succeeded[WINDOW:] - succeeded[:-WINDOW]) / WINDOW
        reached = np.flatnonzero(shares >= share)
        return int(self.tokens[WINDOW - 1 + reached[0]]) if len(reached) else None


def train(name: str, seed: int, folder: Path, changes: Sequence[str]) -> None:
    """Train, and store what is sampled in every step."""
    roll.train(name, seed=seed, output_dir=str(folder), overrides=["trajectory_dump_steps=1", *changes])


def read(folder: Path) -> Measured:
    """Return what came of the run in a folder."""
    rows = read_metrics(folder / "logs" / "metrics.jsonl")
    found = {int(row["step"]): row["val/success"] for row in rows if row.get("val/success") is not None}
    sampled, tokens, success = [0], [], []
    # What is replayed is stored where it was sampled.
    for step in range(1, max(int(row["step"]) for row in rows) + 1):
        columns = pq.read_table(trajectory_path(folder, step, "train"), columns=["completion_tokens", "success"])
        own = columns["completion_tokens"].to_pylist()
        tokens += own
        success += columns["success"].to_pylist()
        sampled.append(sampled[-1] + sum(own))
    evaluations = [Point(sampled[step], found[step]) for step in sorted(found)]
    return Measured(evaluations, np.cumsum(tokens), np.array(success, bool))


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
    parser.add_argument("--sampled", type=float, default=0.85, help="success of the episodes that are sampled")
    parser.add_argument("--read", action="store_true", help="do not train: the runs lie in --folder")
    arguments = parser.parse_args()
    print(
        "| configuration | seed | evaluation aimed at | tokens until then "
        f"| tokens until {arguments.sampled:.0%} were sampled | tokens in all | evaluation in the end |"
    )
    print("|---|---|---|---|---|---|---|")
    saved: dict[str, list[float]] = {}
    for seed in arguments.seeds:
        runs = {}
        for name, changes in ((WITHOUT, []), (WITH, arguments.replay)):
            folder = arguments.folder / f"{name}-{seed}"
            if not arguments.read:
                train(name, seed, folder, [*arguments.set, *changes])
            runs[name] = read(folder)
        aim = runs[WITHOUT].evaluations[-1].success - arguments.slack
        until = {
            name: (tokens_until(run.evaluations, aim), run.tokens_until(arguments.sampled))
            for name, run in runs.items()
        }
        for name, run in runs.items():
            reached = " | ".join("never" if tokens is None else f"{tokens:,}" for tokens in until[name])
            print(
                f"| `{name}` | {seed} | {aim:.1%} | {reached} | {int(run.tokens[-1]):,} "
                f"| {run.evaluations[-1].success:.1%} |",
                flush=True,
            )
        for ruler, before, after in zip(("evaluations", "what was sampled"), *until.values(), strict=True):
            if before and after is not None:
                saved.setdefault(ruler, []).append(1 - after / before)
    print()
    for ruler, shares in saved.items():
        print(
            f"by {ruler}: {len(shares)} of {len(arguments.seeds)} seeds, {fmean(shares):.0%} fewer tokens with replay"
        )
    if not saved:
        print("nothing to compare: no seed got there with replay, or what is aimed at was there from the start")


if __name__ == "__main__":
    main()
