"""The table of episodes while it is still being read: pages come in between, and each shows one moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from roll.trajectories.store import trajectory_path, write_trajectories
from roll.viewer.episodes import Episodes
from roll.viewer.filters import Filter
from roll.viewer.run_folder import RunFolder

from .pages import make_trajectory

STEPS = 40


@pytest.fixture
def episodes(tmp_path: Path) -> Iterator[Episodes]:
    for step in range(1, STEPS + 1):
        made = [make_trajectory(step, group_id=f"g-{step}")]
        write_trajectories(trajectory_path(tmp_path, step, "train"), made, step=step, phase="train", run="my run")
    found = Episodes(RunFolder.find(tmp_path))
    yield found
    found.close()


def test_reading_comes_on_with_no_time_at_all_and_the_newest_first(episodes: Episodes) -> None:
    known = []
    while not known or episodes.pending:
        before = len(known)
        episodes.refresh(0)
        known = [row.step for row in episodes.first(Filter(), STEPS)]
        assert len(known) > before, "a call that reads nothing would never end"
        if len(known) < STEPS:
            assert STEPS in known and 1 not in known
    assert sorted(known) == list(range(1, STEPS + 1))


@pytest.mark.parametrize("text", ["", "push"])
def test_a_page_shows_one_moment_and_is_not_kept_waiting_for_all_files(episodes: Episodes, text: str) -> None:
    episodes.refresh(0)
    with episodes.steady(Filter(text=text)):
        before, pending = episodes.sum_up(Filter()), episodes.pending
        assert 0 < pending < STEPS
        other = threading.Thread(target=episodes.refresh)
        other.start()
        other.join(0.3)
        assert other.is_alive() and episodes.sum_up(Filter()) == before and episodes.pending == pending
    other.join(60)
    assert not other.is_alive() and episodes.sum_up(Filter())[0] == STEPS
