"""What the jobs that ship learn: trains them, measures the policy before and after, and writes the table of README.

python benchmarks/learned.py sokoban rlvr_math --seeds 42 1 2     # train and measure: minutes for each job and seed
python benchmarks/learned.py                                      # only write the tables anew

Figures go to docs/experiments/learned.json, one row for each job and seed; measured again, a row is replaced.
A policy is measured on what its job validates with, with sampled and with the likeliest tokens.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev

import roll

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs" / "experiments" / "learned.json"
PAGES = {ROOT / "README.md": True, ROOT / "docs" / "experiments" / "learned.md": False}
"""Where the table stands, and whether only with the default seed."""
DEFAULT_SEED = 42
BEGIN, END = "<!-- learned: written by benchmarks/learned.py -->", "<!-- learned: end -->"

JOBS = {
    "sokoban": "Sokoban, 6×6",
    "larger_sokoban": "Sokoban, 8×8, two boxes",
    "frozen_lake": "a frozen lake",
    "frozen_lake_slippery": "a lake where moves slip",
    "frozen_lake_two_stages": "the same lake, in two stages",
    "rlvr_math": "arithmetic and word problems",
    "rlvr_choices": "multiple choice",
    "math_tools": "large problems with a calculator",
    "search_qa": "questions with a search",
    "countdown_tools": "Countdown with a calculator",
    "countdown_no_tools": "the same without one",
    "taxi": "Taxi, in Gymnasium's words",
    "textarena_duel": "Nim, against the policy before training",
    "rlvr_smollm2": "small sums and stories, a real model",
    "guess_smollm2": "a game of guessing in words, a real model",
}
"""Configurations that ship, and what they learn in words; each is measured on what it validates with."""
VARIANTS = {"countdown_no_tools": ("countdown_tools", ["variables.tools=[]"])}
"""Jobs that are another configuration with other keys."""
VALIDATED_AS = {"frozen_lake_two_stages": "frozen_lake_slippery"}
"""The configuration whose validation a job is measured on, where that is another one: stages have one each."""


@dataclass(frozen=True, slots=True)
class Row:
    """One job with one seed.

    Attributes:
        job: Name of the configuration.
        seed: Its seed; levels depend on it, problems do not.
        steps: Optimiser steps of the run.
        minutes: Wall time of the run with its evaluations; ``None`` where other work slowed it down.
        cores: On how many.
        sampled: Success before and after, sampled as in training.
        greedy: The same with the likeliest tokens.
        errors: Standard errors of these four, in that order.
    """

    job: str
    seed: int
    steps: int
    minutes: float | None
    cores: int
    sampled: Sequence[float]
    greedy: Sequence[float]
    errors: Sequence[float]


def measure(name: str, seed: int, folder: Path, changes: Sequence[str] = (), is_busy: bool = False) -> Row:
    """Train a job, and measure the policy that it starts from and the one that it ends with.

    Args:
        name: One of ``JOBS``.
        seed: For levels, problems and tokens.
        folder: The run goes to ``folder/<name>-<seed>``.
        changes: Keys as on the command line.
        is_busy: Whether the machine has other work, so that minutes say nothing.
    """
    config, keys = VARIANTS.get(name, (name, []))
    changes = [*keys, *changes]
    began = time.monotonic()
    run = roll.train(config, seed=seed, output_dir=str(folder / f"{name}-{seed}"), overrides=list(changes))
    minutes = (time.monotonic() - began) / 60
    if run.checkpoint is None:
        raise SystemExit(f"{run.folder} has no checkpoint: set save_steps.")
    alone = name not in VALIDATED_AS
    before, after = (
        roll.evaluate(
            policy, config=VALIDATED_AS.get(name, config), overrides=list(changes) if alone else [], seed=seed
        )
        for policy in (run.config["pretrain"], run.checkpoint)
    )
    assert before.greedy is not None and after.greedy is not None
    sampled = (before.sampled.success, after.sampled.success)
    greedy = (before.greedy.success, after.greedy.success)
    return Row(
        job=name,
        seed=seed,
        steps=sum(roll.open_run(stage).steps for stage in run.stages) if run.stages else run.steps,
        minutes=None if is_busy else round(minutes, 1),
        cores=len(os.sched_getaffinity(0)),
        sampled=[round(each.mean, 4) for each in sampled],
        greedy=[round(each.mean, 4) for each in greedy],
        errors=[round(each.standard_error, 4) for each in (*sampled, *greedy)],
    )


def read() -> list[Row]:
    """Return what has been measured so far."""
    return [Row(**row) for row in json.loads(FIGURES.read_text(encoding="utf-8"))] if FIGURES.exists() else []


def keep(row: Row) -> None:
    """Add a row, in place of the one of the same job and seed."""
    rows = [each for each in read() if (each.job, each.seed) != (row.job, row.seed)]
    names = list(JOBS)
    rows = sorted([*rows, row], key=lambda each: (names.index(each.job), each.seed != DEFAULT_SEED, each.seed))
    text = ",\n".join(json.dumps(asdict(each)) for each in rows)
    FIGURES.write_text(f"[\n{text}\n]\n", encoding="utf-8")


def table(rows: Sequence[Row], default_only: bool) -> str:
    """Return the figures as Markdown: of the default seed, or of all seeds with their mean.

    The error of a row is the standard error over levels; that of a mean over seeds is the standard error of the seeds.
    """
    lines = ["| job | seed | sampled | likeliest | steps | minutes |", "|---|---|---|---|---|---|"]
    for name, what in JOBS.items():
        mine = [row for row in rows if row.job == name]
        for row in mine:
            if row.seed == DEFAULT_SEED or not default_only:
                sampled = _change(row.sampled, row.errors[1])
                greedy = _change(row.greedy, row.errors[3])
                minutes = "not measured" if row.minutes is None else row.minutes
                lines.append(f"| `{name}`: {what} | {row.seed} | {sampled} | {greedy} | {row.steps} | {minutes} |")
        if len(mine) > 1 and not default_only:
            means = (_over_seeds([row.sampled for row in mine]), _over_seeds([row.greedy for row in mine]))
            lines.append(f"| `{name}` | **mean of {len(mine)}** | {means[0]} | {means[1]} | | |")
    return "\n".join(lines)


def _change(pair: Sequence[float], error: float) -> str:
    return f"{100 * pair[0]:.1f} → {100 * pair[1]:.1f} ± {100 * error:.1f} %"


def _over_seeds(pairs: Sequence[Sequence[float]]) -> str:
    before, after = zip(*pairs, strict=True)
    return _change((fmean(before), fmean(after)), stdev(after) / math.sqrt(len(after)))


def written(page: str, rows: Sequence[Row], default_only: bool) -> str:
    """Return a page with the table between its marks made anew.

    Raises:
        ValueError: The page has no such marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the page has no {BEGIN} … {END}")
    return f"{before}{begin}\n\n{table(rows, default_only)}\n\n{end}{after}"


def main() -> None:
    """Measure what is asked for, and write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", choices=[[], *JOBS], help="configurations that ship")
    parser.add_argument("--seeds", nargs="+", type=int, default=[DEFAULT_SEED])
    parser.add_argument("--folder", type=Path, default=Path("output") / "learned", help="where the runs go")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="try it with other keys; not kept")
    parser.add_argument("--busy", action="store_true", help="the machine has other work: do not keep the minutes")
    arguments = parser.parse_args()
    for name in arguments.jobs:
        for seed in arguments.seeds:
            row = measure(name, seed, arguments.folder, arguments.set, arguments.busy)
            print(table([row], default_only=False), flush=True)
            if not arguments.set:
                keep(row)
    if not arguments.set:
        for path, default_only in PAGES.items():
            path.write_text(written(path.read_text(encoding="utf-8"), read(), default_only), encoding="utf-8")


if __name__ == "__main__":
    main()
