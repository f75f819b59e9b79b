"""The ratios of the benchmarks over time, and whether one of them fell.

python benchmarks/history.py check            # run them, and compare with the last time on such a machine
python benchmarks/history.py add              # the same, and keep the figures: a line of benchmarks/history.jsonl
python benchmarks/history.py page             # only write docs/experiments/benchmarks.md and its picture anew

A ratio compares us with a peer in the same run, so that it says something on any machine; it is still compared with
figures of the same kind of machine only. It fell if it is below the last one by more than the rounds of both times
spread; then the code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ratios import VARIABLE, Ratio, read

import roll

HERE = Path(__file__).resolve().parent
FILE = HERE / "history.jsonl"
PAGE = HERE.parent / "docs" / "experiments" / "benchmarks.md"
PICTURE = HERE.parent / "docs" / "images" / "benchmark_history.png"
BEGIN, END = "<!-- history: written by benchmarks/history.py -->", "<!-- history: end -->"

PROGRAMS: Mapping[str, tuple[int, str]] = {
    "env_speed": (3, "--rounds 2"),
    "algorithms": (3, ""),
    "generation": (2, "uniform mixed"),
    "weight_sync": (1, "--rounds 9"),
    "shared_prefixes": (1, "--rounds 3"),
    "sft_vs_trl": (1, "--rounds 3"),
    "rlvr_vs_trl": (1, "--rounds 3"),
    "ray_overhead": (1, "--environments 512 --turns 5 --seconds 0.8"),
    "real_model": (1, "--dtypes fp32 --requests 1 8"),
}
"""The benchmarks whose ratios are kept: how often each is run, which tells how much it spreads, and its arguments."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The ratios of one time.

    Attributes:
        date: Day, as in ``2026-11-24``.
        version: Of roll.
        commit: What was checked out.
        machine: Its kind.
        ratios: All that were measured.
    """

    date: str
    version: str
    commit: str
    machine: str
    ratios: Sequence[Ratio]

    @classmethod
    def from_line(cls, line: str) -> Entry:
        """Return the entry of a line of the history."""
        fields = json.loads(line)
        return cls(**{**fields, "ratios": [Ratio(**ratio) for ratio in fields["ratios"]]})


def machine() -> str:
    """Return the kind of this machine: its processor and how many of it."""
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return f"{os.cpu_count()} x {names[0] if names else 'unknown processor'}"


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines() if Path(path).is_file() else []


def measured(programs: Iterable[str]) -> Entry:
    """Run benchmarks and return what they found.

    Raises:
        RuntimeError: One left no ratio.
    """
    found: list[Ratio] = []
    for name in programs:
        with tempfile.TemporaryDirectory() as folder:
            left = Path(folder) / "ratios.jsonl"
            times, arguments = PROGRAMS[name]
            words = [sys.executable, str(HERE / f"{name}.py"), *arguments.split()]
            for _ in range(times):
                # Code 1 is a verdict on a target, and not of concern here.
                subprocess.run(words, env={**os.environ, VARIABLE: str(left)}, check=False)
            ratios = read(left)
        if not ratios:
            raise RuntimeError(f"{name} left no ratio: run {' '.join(words)} by itself to see why.")
        found += ratios
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False
    )
    return Entry(time.strftime("%Y-%m-%d"), roll.__version__, commit.stdout.strip(), machine(), found)


def history() -> list[Entry]:
    """Return all entries, the oldest first."""
    return [Entry.from_line(line) for line in _lines(str(FILE))]


def newest(entries: Iterable[Entry], kind: str) -> dict[str, tuple[Ratio, Entry]]:
    """Return each ratio as it was measured last on a kind of machine, by its name, and when that was."""
    return {ratio.name: (ratio, entry) for entry in entries if entry.machine == kind for ratio in entry.ratios}


def fallen(now: Entry, before: Iterable[Entry]) -> list[str]:
    """Return a sentence for each ratio that is lower than the last time on such a machine by more than the noise."""
    last = newest(before, now.machine)
    said = []
    for ratio in now.ratios:
        old, _ = last.get(ratio.name, (None, None))
        if old is not None and old.median - ratio.median > (old.median - old.low) + (ratio.high - ratio.median):
            said.append(
                f"{ratio.name}: {ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f}), "
                f"was {old.median:.2f} ({old.low:.2f} to {old.high:.2f})"
            )
    return said


def verdict(now: Entry, before: Iterable[Entry], said: Sequence[str]) -> str:
    """Return what to print of ratios that were compared, and fell as ``said``: that none was kept is no good news."""
    if said:
        return "\n  ".join(["\nFell since the last time on such a machine:", *said])
    kept = newest(before, now.machine)
    compared = sum(ratio.name in kept for ratio in now.ratios)
    if not compared:
        return f"\nNothing was compared: no figures are kept of {now.machine}. `history.py add` keeps them."
    return f"\nNone of {compared} ratios fell; {len(now.ratios) - compared} were never kept on such a machine."


def write_page(entries: Sequence[Entry]) -> None:
    """Write the table of the newest figure of each ratio on each kind of machine, and the picture of all."""
    lines = [BEGIN, "", "![Every ratio over time](../images/benchmark_history.png)", ""]
    for kind in dict.fromkeys(entry.machine for entry in entries):
        lines += [f"{kind}:", "", "| ratio | median | rounds | measured | commit |", "|---|---|---|---|---|"]
        for each, entry in newest(entries, kind).values():
            rounds = f"{each.low:.2f} to {each.high:.2f}"
            lines.append(f"| {each.name} | {each.median:.2f} | {rounds} | {entry.date} | {entry.commit} |")
        lines.append("")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + "\n".join(lines) + END + rest.partition(END)[2])
    _draw(entries)


def _draw(entries: Sequence[Entry]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(ratio.name for entry in entries for ratio in entry.ratios))
    columns = 4
    rows = -(-len(names) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(3.2 * columns, 2.1 * rows), squeeze=False)
    for name, axis in zip(names, axes.flat, strict=False):
        for kind in dict.fromkeys(entry.machine for entry in entries):
            points = [
                (number, ratio)
                for number, entry in enumerate(entries)
                for ratio in entry.ratios
                if ratio.name == name and entry.machine == kind
            ]
            spread = [[r.median - r.low for _, r in points], [r.high - r.median for _, r in points]]
            axis.errorbar([n for n, _ in points], [r.median for _, r in points], yerr=spread, marker="o", capsize=2)
        axis.axhline(1.0, color="#868e96", linewidth=0.8)
        axis.set_title(textwrap.fill(name, 44), fontsize=8)
        axis.set_ylim(bottom=0)
        axis.set_xticks(range(len(entries)), [entry.commit for entry in entries], fontsize=6)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["check", "add", "page"])
    parser.add_argument("programs", nargs="*", choices=[[], *PROGRAMS], help="only these")
    arguments = parser.parse_args()
    before = history()
    said: list[str] = []
    if arguments.what != "page":
        now = measured(arguments.programs or PROGRAMS)
        said = fallen(now, before)
        print(verdict(now, before, said))
        if arguments.what == "add":
            with FILE.open("a") as file:
                file.write(json.dumps(asdict(now)) + "\n")
            before.append(now)
    if arguments.what != "check":
        write_page(before)
    raise SystemExit(1 if said else 0)


if __name__ == "__main__":
    main()
