"""The section *Branch* of an episode: values and fans as they were stored, and the command where nothing was."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roll.runs.layout import FANS, branches_of
from roll.trajectories.store import trajectory_path, write_trajectories
from roll.viewer.branches import HEIGHT, read_branches, view_branches
from roll.viewer.episodes import Episodes, Row
from roll.viewer.filters import Filter
from roll.viewer.notes import Notes
from roll.viewer.pages import Pages
from roll.viewer.rendering import Addresses
from roll.viewer.run_folder import RunFolder

from .pages import HOSTILE, make_trajectory

ACTIONS = ["Up", HOSTILE]


def turn(number: int, scores: list[float], mean: float | None, error: float | None) -> dict[str, Any]:
    solved = {"success": 0.5, "success_standard_error": 0.25} if scores else {"success": None}
    return {"turn": number, "mean": mean, "standard_error": error, "scores": scores, "broken": 0} | (
        {"success_standard_error": None} | solved
    )


RECORD = {
    "n": 4,
    "score": -1.0,
    "turns": [turn(0, [-1.0, -1.0, 9.0, 9.0], 4.0, 2.5), turn(1, [-1.0, -1.0, -1.0, 9.0], 1.5, 2.0)],
    "largest_fall": {"turn": 1, "change": -2.5, "standard_error": 2.0, "clear": False},
}


@pytest.fixture
def episodes(tmp_path: Path) -> Iterator[Episodes]:
    episode = make_trajectory(1, success=False, group_id="levels/1")
    episode.turns[1].action = HOSTILE
    path = trajectory_path(tmp_path, 3, "train")
    write_trajectories(path, [episode], step=3, phase="train", run="my run", token_text=chr)
    found = Episodes(RunFolder.find(tmp_path))
    found.refresh()
    yield found
    found.close()


def only(episodes: Episodes) -> Row:
    [row] = episodes.select(Filter())
    return row


def page(episodes: Episodes) -> str:
    row = only(episodes)
    pages = Pages(episodes, Addresses(), Notes(episodes.run.notes_file), token="")
    return pages.episode(row, pages.view(row), pages.place(row, Filter()))


def keep(episodes: Episodes, record: dict[str, Any]) -> None:
    folder = branches_of(episodes.run.home, "train", 3, "levels/1", 0)
    folder.mkdir(parents=True)
    (folder / FANS).write_text(json.dumps(record))


def test_values_fans_and_changes_are_drawn_to_scale() -> None:
    view = view_branches(RECORD, ACTIONS)
    first, second = view.fans
    assert (view.low, view.high, view.end) == (-1.0, 9.0, (160.0, HEIGHT))
    assert (first.y, first.reach, second.y) == (HEIGHT / 2, HEIGHT / 4, HEIGHT * 0.75)
    assert view.line == "32.0,80.0 96.0,120.0 160.0,160.0"
    assert [bar.hint.partition(" near")[0] for bar in second.bars] == ["1 of 4", "3 of 4"]
    assert second.bars[1].width == pytest.approx(3 * second.bars[0].width, abs=0.2)
    assert (first.value, first.solved, first.change) == ("4.00 ± 2.50", "50% ± 25%", "-2.50 ± 3.20")
    assert [fan.worst for fan in view.fans] == [False, True]


def test_continuations_that_all_broke_or_all_score_the_same_have_their_place() -> None:
    view = view_branches(RECORD | {"turns": [turn(1, [], None, None)], "largest_fall": None}, ACTIONS)
    assert (view.fans[0].y, view.fans[0].value, view.fans[0].solved, view.lost) == (None, "–", "–", "")
    [same] = view_branches(RECORD | {"turns": [turn(0, [-1.0], -1.0, None)], "largest_fall": None}, ACTIONS).fans
    assert (same.y, same.reach, same.value) == (HEIGHT / 2, 0.0, "-1.00")


def test_the_page_of_an_episode_has_what_was_stored_of_it_and_text_is_only_text(episodes: Episodes) -> None:
    keep(episodes, RECORD)
    shown = page(episodes)
    assert "4 continuations from each turn." in shown and "Most was lost at turn 2: -2.50 ± 2.00, which may be" in shown
    assert '<td class="figure">4.00 ± 2.50</td>' in shown and "most lost" in shown
    assert "<script>document" not in shown and "roll branch" not in shown


def test_where_nobody_branched_there_is_the_command_that_does(episodes: Episodes) -> None:
    shown = page(episodes)
    asked = shown[shown.index("roll branch") :].partition("</pre>")[0]
    place = ["levels/1/0", "--step", "3", "--phase", "train", "--every-turn", "--n", "16"]
    assert shlex.split(asked) == ["roll", "branch", str(episodes.run.home), *place]


@pytest.mark.parametrize("changed", [{"score": 2.0}, {"turns": [turn(5, [1.0], 1.0, None)]}, {"n": None, "turns": 3}])
def test_what_is_about_another_episode_of_this_name_or_damaged_is_not_shown(
    episodes: Episodes, changed: dict[str, Any]
) -> None:
    keep(episodes, RECORD | changed)
    assert read_branches(episodes.run.home, only(episodes), ACTIONS) is None
