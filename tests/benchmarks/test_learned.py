"""The table of what the jobs learn is that of the figures which were measured."""

from __future__ import annotations

from dataclasses import replace

import learned
import pytest
from learned import BEGIN, DEFAULT_SEED, END, JOBS, PAGES, VARIANTS, Row, read, table, written

from roll.config.shipped import SHIPPED

ROWS = [
    Row("sokoban", 42, 24, 4.5, 2, [0.3, 0.8], [0.6, 0.7], [0.03, 0.02, 0.03, 0.04]),
    Row("sokoban", 1, 24, 4.5, 2, [0.4, 0.9], [0.6, 0.8], [0.03, 0.02, 0.03, 0.03]),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_shows_the_figures_that_were_measured(page) -> None:
    text = page.read_text(encoding="utf-8")
    assert written(text, read(), PAGES[page]) == text, "python benchmarks/learned.py writes it anew"


def test_every_job_ships_and_was_measured_with_the_default_seed() -> None:
    assert {row.job for row in read() if row.seed == DEFAULT_SEED} == set(JOBS)
    configurations = {VARIANTS.get(name, (name, []))[0] for name in JOBS}
    assert all((SHIPPED / "config" / f"{name}.yaml").is_file() for name in configurations)


def test_the_table_has_each_seed_with_its_error_and_the_mean_with_that_of_the_seeds() -> None:
    shown = table(ROWS, default_only=False)
    assert "| 42 | 30.0 → 80.0 ± 2.0 % | 60.0 → 70.0 ± 4.0 % | 24 | 4.5 |" in shown
    assert "| **mean of 2** | 35.0 → 85.0 ± 5.0 % | 60.0 → 75.0 ± 5.0 % | | |" in shown
    assert "| 1 |" not in table(ROWS, default_only=True)


def test_minutes_that_other_work_made_are_not_shown() -> None:
    shown = table([replace(ROWS[0], minutes=None)], default_only=True)
    assert "| 24 | not measured |" in shown


def test_only_what_is_between_the_marks_is_written() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert written(page, ROWS, True) == f"before\n{BEGIN}\n\n{table(ROWS, True)}\n\n{END}\nafter\n"
    with pytest.raises(ValueError, match="no <!--"):
        written("no marks", ROWS, True)


def test_a_job_that_is_measured_again_replaces_its_row(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(learned, "FIGURES", tmp_path / "learned.json")
    for row in (ROWS[1], ROWS[0], ROWS[1]):
        learned.keep(row)
    assert read() == ROWS
