"""Continuations of stored episodes: they share what was stored, word for word, and differ after it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from roll.cli.app import main
from roll.config import ConfigError, RunError
from roll.replay.branching import branch, folder_of
from roll.replay.fans import Branches, Fan, histogram
from roll.runs.stored import StoredRun
from roll.trajectories.model import Trajectory
from roll.trajectories.store import read_trajectories
from roll.viewer.branches import BranchView, read_branches
from roll.viewer.episodes import Episodes
from roll.viewer.run_folder import RunFolder
from tests.replay.test_replay import changed

pytestmark = pytest.mark.long  # whole runs


def long_one(run: StoredRun) -> Trajectory:
    """The longest game of Sokoban of the second step."""
    return max((each for each in run.episodes(2, "train") if each.tag == "SimpleSokoban"), key=lambda e: len(e.turns))


def named(stored: Trajectory) -> str:
    return f"{stored.group_id}/{stored.episode}"


def continuations(found: Branches) -> list[Trajectory]:
    return [each for file in sorted(folder_of(found).glob("*.parquet")) for each in read_trajectories(file)]


def review_of(folder: Path, stored: Trajectory) -> BranchView:
    """What the review shows of the continuations of an episode."""
    episodes = Episodes(RunFolder.find(folder))
    episodes.refresh()
    row = episodes.find("train", 2, stored.group_id, stored.episode)
    assert row is not None
    found = read_branches(folder, row, [turn.action for turn in stored.turns])
    episodes.close()
    assert found is not None
    return found


@pytest.mark.exhaustive
def test_continuations_share_every_token_and_state_up_to_their_turn(games: StoredRun, tmp_path: Path) -> None:
    run = changed(games, tmp_path / "copy", 2, lambda stored: None)
    before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    stored = long_one(run)
    assert len(stored.turns) >= 3
    found = branch(run, named(stored), n=6, step=2)
    members = continuations(found)
    assert [fan.turn for fan in found.fans] == list(range(len(stored.turns))) and len(members) == 6 * len(found.fans)
    for each in members:
        turn = int(each.group_id.rpartition("@")[2]) - 1
        for old, new in zip(stored.turns[:turn], each.turns, strict=False):
            assert (old.prompt_ids, old.completion_ids, old.observation) == (
                new.prompt_ids,
                new.completion_ids,
                new.observation,
            )
            assert (old.reward, old.logprobs) == (new.reward, new.logprobs)
        assert each.turns[turn].prompt_ids == stored.turns[turn].prompt_ids
    first = [tuple(each.turns[0].completion_ids) for each in members if each.group_id.endswith("@1")]
    assert len(set(first)) > 1
    assert {path: path.read_bytes() for path in before} == before
    figures = json.loads((folder_of(found) / "fans.json").read_text())
    assert [one["turn"] for one in figures["turns"]] == list(range(len(stored.turns)))


def test_the_same_seed_gives_the_same_continuations_and_another_gives_others(games: StoredRun, tmp_path: Path) -> None:
    run = changed(games, tmp_path / "copy", 2, lambda stored: None)
    name = named(long_one(run))

    def drawn(seed: int) -> list[list[int]]:
        found = branch(run, name, [1], n=4, step=2, seed=seed)
        return [turn.completion_ids for each in continuations(found) for turn in each.turns]

    once = drawn(0)
    assert drawn(0) == once != drawn(1)


def test_a_greedy_policy_goes_on_in_one_way(games: StoredRun, tmp_path: Path) -> None:
    run = changed(games, tmp_path / "copy", 2, lambda stored: None)
    found = branch(run, named(long_one(run)), [1], n=3, step=2, temperature=0.0)
    assert len(set(found.fans[0].scores)) == 1 and found.fans[0].standard_error == 0.0


def test_an_episode_that_does_not_come_out_the_same_is_not_continued(games: StoredRun, tmp_path: Path) -> None:
    def change(stored: list[Trajectory]) -> None:
        each = max((e for e in stored if e.tag == "SimpleSokoban"), key=lambda e: len(e.turns))
        each.turns[1].observation += "?"

    run = changed(games, tmp_path / "copy", 2, change)
    with pytest.raises(RunError, match=r"cannot go on from turn 3.*turn 2, character .*observation"):
        branch(run, named(long_one(run)), [2], n=2, step=2)
    assert not (run.folder / "branches").exists()


def test_answers_groups_and_turns_that_there_are_not_are_refused(games: StoredRun, answers: StoredRun) -> None:
    stored = long_one(games)
    with pytest.raises(ConfigError, match="this is a group"):
        branch(games, stored.group_id, [0], step=2)
    with pytest.raises(ConfigError, match=f"it has the turns 1 to {len(stored.turns)}"):
        branch(games, named(stored), [len(stored.turns)], step=2)
    with pytest.raises(ConfigError, match="no turns to go on from"):
        branch(answers, named(answers.episodes(2, "train")[0]), [0], step=2)


def test_a_fan_has_mean_and_standard_error_of_what_did_not_break() -> None:
    fan = Fan(0, [1.0, 2.0, 3.0, 6.0], 0.5, broken=1)
    assert fan.mean == 3.0
    assert fan.standard_error == pytest.approx(math.sqrt((4 + 1 + 0 + 9) / 3 / 4))
    assert fan.success_error == pytest.approx(0.25)
    assert histogram([0.0, 0.0, 11.0], 0.0, 11.0) == "█          ▄"


def test_the_command_names_the_turn_at_which_most_was_lost(
    games: StoredRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = changed(games, tmp_path / "copy", 2, lambda stored: None)
    stored = long_one(run)
    words = ["branch", str(run.folder), named(stored), "--step", "2", "--n", "4"]
    with pytest.raises(SystemExit) as left:
        main([*words, "--every-turn"])
    out = capsys.readouterr().out
    figures = json.loads(next(run.folder.glob("branches/*/*/fans.json")).read_text())
    fall = figures["largest_fall"]
    assert left.value.code in (0, None) and "4 continuations from each turn" in out
    assert fall is None or f"Most was lost at turn {fall['turn'] + 1}" in out
    shown = review_of(run.folder, stored)
    assert [fan.number for fan in shown.fans] == list(range(1, len(stored.turns) + 1)) and shown.n == 4
    assert [fan.worst for fan in shown.fans] == [bool(fall) and fall["turn"] == one["turn"] for one in figures["turns"]]
    assert all(f"{fan.value.partition(' ')[0]} ±" in out for fan in shown.fans)
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2 and "--turn NUMBER or --every-turn" in capsys.readouterr().err
    folder = next(run.folder.glob("branches/*/*"))
    with pytest.raises(SystemExit):
        main(["view", str(folder), "--text"])
    assert f"{stored.group_id}/{stored.episode}@1/0" in capsys.readouterr().out
