"""What the slippery lake allows at best, and how near the job comes to it."""

from __future__ import annotations

import pytest
from frozen_lake_optimum import (
    JOB,
    lake_of_the_job,
    moves_of,
    optimal_success,
    random_success,
    success_of,
    transitions,
    worth_of_moves,
)
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


def test_a_policy_is_judged_by_the_odds_of_its_moves() -> None:
    table = transitions(ICE, success_rate=0.8)
    at_random = dict.fromkeys((0, 1), [0.25] * 4)
    assert success_of(table, 4, at_random) == pytest.approx(random_success(table, 4))
    best = {0: [0.0, 0.0, 1.0, 0.0], 1: [0.0, 1.0, 0.0, 0.0]}
    assert success_of(table, 4, best) == pytest.approx(optimal_success(table, 4))
    assert max(worth_of_moves(table, 4)[0]) == pytest.approx(optimal_success(table, 4))


def test_the_cells_of_a_policy_say_how_often_it_crosses_as_playing_does() -> None:
    """The policy that the job starts from, asked cell by cell, against what was measured by playing."""
    table, turns = lake_of_the_job()
    row = next(row for row in read() if (row.job, row.seed) == (JOB, DEFAULT_SEED))
    moves = moves_of("toy")
    assert len(moves) == 11 and all(sum(odds) == pytest.approx(1) for odds in moves.values())
    assert success_of(table, turns, moves) == pytest.approx(row.sampled[0], abs=3 * row.errors[0])


def test_the_page_states_what_is_possible_and_what_share_of_it_the_jobs_reach() -> None:
    table, turns = lake_of_the_job()
    best = optimal_success(table, turns)
    rows = {row.job: row for row in read() if row.seed == DEFAULT_SEED}
    page = (ROOT / "docs" / "experiments" / "frozen_lake.md").read_text(encoding="utf-8")
    assert f"| {100 * random_success(table, turns):.1f} % | **{100 * best:.1f} %** |" in page
    for job in (JOB, "frozen_lake_two_stages"):
        assert f"{100 * rows[job].sampled[1] / best:.0f} % of the best" in " ".join(page.split())
    assert f"**{100 * rows[JOB].sampled[1]:.1f} %**" in page
    assert rows["frozen_lake_two_stages"].sampled[1] >= 0.9 * best
