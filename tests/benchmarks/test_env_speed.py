"""What tags cost is measured of real environments, and kept a row each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import env_speed
import pytest

import roll.envs

ROW = env_speed.Row("FrozenLake", 1.0, 2.0, 3.0, 4, 5, 6, False, "1 x slow")


def written(figures: Path) -> dict[str, dict[str, object]]:
    return {row["tag"]: row for row in json.loads(figures.read_text(encoding="utf-8"))}


def test_a_tag_is_measured_in_a_process_of_its_own() -> None:
    row = env_speed.measure("FrozenLake", len, idle=False)
    assert row.steps_per_second > row.resets_per_second > 1
    assert 0.5 < row.kib < 100 and row.environments > 4
    assert row.tokens == row.characters == 394 and not row.idle


def test_a_player_says_what_a_game_understands() -> None:
    env = roll.envs.make("MultipleChoice")
    (answer,) = env_speed._played(env, "MultipleChoice", 3)
    env_speed.settled(env.reset(seed=3))
    assert env_speed.settled(env.step(answer))[1] == 1.0
    lake = roll.envs.make("FrozenLake")
    assert all(lake.parse_action(response) in lake.actions for response in env_speed._played(lake, "FrozenLake", 3))


def test_a_row_takes_the_place_of_the_one_before_and_others_stay(tmp_path: Path) -> None:
    figures = tmp_path / "speeds.json"
    env_speed.keep(replace(ROW, tag="Taxi"), figures)
    env_speed.keep(ROW, figures)
    env_speed.keep(replace(ROW, kib=9.0), figures)
    assert list(written(figures)) == ["FrozenLake", "Taxi"]
    assert (written(figures)["FrozenLake"]["kib"], written(figures)["Taxi"]["kib"]) == (9.0, 3.0)


def test_rows_of_tags_that_are_gone_are_left_out(tmp_path: Path) -> None:
    figures = tmp_path / "speeds.json"
    figures.write_text('[{"tag": "NoSuchTag"}]', encoding="utf-8")
    env_speed.keep(ROW, figures)
    assert list(written(figures)) == ["FrozenLake"]


def test_a_tag_whose_package_is_missing_keeps_its_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = tmp_path / "speeds.json"
    roll.envs.register_tag("NoGame", env_type="open_adventure", env_config={"program": "no-such-game"})
    try:
        env_speed.keep(replace(ROW, tag="NoGame"), figures)
        env_speed.measure_tags(["NoGame"], figures, len, idle=True)
        assert written(figures)["NoGame"]["kib"] == 3.0
    finally:
        roll.envs.unregister("NoGame")
    assert "not measured: " in capsys.readouterr().out
