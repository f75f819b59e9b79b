"""What the slippery lake allows at best, and how near the job comes to it."""

from __future__ import annotations

import pytest
from frozen_lake_optimum import JOB, lake_of_the_job, optimal_success, random_success, transitions
from learned import DEFAULT_SEED, ROOT, read

ICE = ["SF", "HG"]
"""Best is right, then down. A slip into the hole costs the game, a slip up stays."""


def test_the_best_policy_of_a_small_lake_is_found() -> None:
    table = transitions(ICE, success_rate=0.8)
    assert optimal_success(table, 1) == 0.0
    assert optimal_success(table, 2) == pytest.approx(0.8 * 0.8)
    # Three turns: an opening that stayed in place is tried again; a second move that slipped back likewise.
    assert optimal_success(table, 3) == pytest.approx(0.8 * (0.8 + 0.1 * 0.8) + 0.1 * 0.8 * 0.8)
    assert random_success(table, 2) == pytest.approx(1 / 16)


def test_the_page_states_what_is_possible_and_what_share_of_it_the_job_reaches() -> None:
    table, turns = lake_of_the_job()
    best = optimal_success(table, turns)
    row = next(row for row in read() if (row.job, row.seed) == (JOB, DEFAULT_SEED))
    page = (ROOT / "docs" / "experiments" / "frozen_lake.md").read_text(encoding="utf-8")
    assert f"| {100 * random_success(table, turns):.1f} % | **{100 * best:.1f} %** |" in page
    assert f"{100 * row.sampled[1] / best:.0f} % of the best" in " ".join(page.split())
    assert f"**{100 * row.sampled[1]:.1f} %**" in page
