"""Ratios of benchmarks are kept, drawn, and compared with those of the last time on such a machine."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import history
import pytest
from ratios import Ratio

KEPT = history.Entry(
    "2026-01-01", "0.1.0", "abc", "2 x slow", [Ratio("speed", 2.0, 1.8, 2.2), Ratio("memory", 3.0, 3.0, 3.0)]
)


def now(*ratios: Ratio) -> history.Entry:
    return replace(KEPT, ratios=ratios)


def test_what_fell_by_more_than_the_rounds_of_both_times_spread_is_named() -> None:
    assert history.fallen(now(Ratio("speed", 1.65, 1.6, 1.8)), [KEPT]) == []
    said = history.fallen(now(Ratio("speed", 1.5, 1.4, 1.6), Ratio("memory", 3.0, 2.0, 3.0)), [KEPT])
    assert said == ["speed: 1.50 (1.40 to 1.60), was 2.00 (1.80 to 2.20)"]


def test_other_machines_and_new_ratios_are_not_compared() -> None:
    assert history.fallen(replace(now(Ratio("speed", 0.1, 0.1, 0.1)), machine="64 x fast"), [KEPT]) == []
    assert history.fallen(now(Ratio("new", 0.1, 0.1, 0.1)), [KEPT]) == []


def test_the_newest_figures_of_such_a_machine_count() -> None:
    newer = now(Ratio("speed", 1.0, 1.0, 1.0))
    assert history.fallen(now(Ratio("speed", 1.0, 1.0, 1.0)), [KEPT, newer]) == []


def test_a_check_without_kept_figures_says_that_nothing_was_compared() -> None:
    new = now(Ratio("speed", 2.0, 2.0, 2.0), Ratio("new", 1.0, 1.0, 1.0))
    assert "Nothing was compared" in history.verdict(replace(new, machine="64 x fast"), [KEPT], [])
    assert "None of 1 ratios fell; 1 were never kept" in history.verdict(new, [KEPT], [])
    assert "speed: 1.50" in history.verdict(new, [KEPT], ["speed: 1.50"])


@pytest.mark.exhaustive
def test_figures_are_measured_kept_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, picture, file = tmp_path / "page.md", tmp_path / "picture.png", tmp_path / "history.jsonl"
    page.write_text(f"before\n{history.BEGIN}\nold\n{history.END}\nafter\n")
    for name, value in (("PAGE", page), ("PICTURE", picture), ("FILE", file)):
        monkeypatch.setattr(history, name, value)
    monkeypatch.setattr(history, "PROGRAMS", {"generation": (1, "uniform --prompts 8 --episodes 4")})
    monkeypatch.setattr("sys.argv", ["history.py", "add"])
    with pytest.raises(SystemExit) as ended:
        history.main()
    assert ended.value.code == 0
    entry = history.Entry.from_line(file.read_text())
    assert [ratio.name for ratio in entry.ratios] == ["generation: uniform"]
    assert json.loads(json.dumps(asdict(entry)))["machine"] == history.machine()
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text and "generation" in text
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_every_figure_that_is_kept_is_of_a_benchmark_that_there_is() -> None:
    names = {ratio.name.partition(":")[0] for entry in history.history() for ratio in entry.ratios}
    assert names <= set(history.PROGRAMS)
