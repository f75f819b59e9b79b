"""The review of a run of several stages: all of it, each episode known by its stage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roll.viewer.episodes import Episodes
from roll.viewer.filters import Filter
from roll.viewer.overview import overview
from roll.viewer.run_folder import RunFolder
from roll.viewer.text import as_text

from .pages import make_trajectory
from .test_server import store


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """Two stages of three that have begun, which played the same level after as many steps."""
    stages = {"sft": {"pipeline": "sft"}, "rl": {"pipeline": "agentic"}, "more": {"pipeline": "agentic"}}
    record = {"name": "all", "config": {"exp_name": "all", "stages": stages}}
    for folder, content in ((".", record), ("sft", {"config": stages["sft"]}), ("rl", {"config": stages["rl"]})):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "run.json").write_text(json.dumps(content))
    store(tmp_path / "sft", 2, [make_trajectory(7, success=False)], "val")
    store(tmp_path / "rl", 2, [make_trajectory(7)], "val")
    (tmp_path / "logs").mkdir()
    rows = [{"step": 0, "val/success": 0.25}, {"step": 1, "val/success": 0.5}, {"step": 2, "val/success": 1.0}]
    (tmp_path / "logs/metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_the_same_level_of_two_stages_is_two_groups(whole: Path) -> None:
    episodes = Episodes(RunFolder.find(whole))
    episodes.refresh()
    found = {stage: episodes.find("val", 2, f"{stage}:val-7", 0) for stage in ("sft", "rl")}
    assert {stage: row and (row.tag, row.success) for stage, row in found.items()} == {
        "sft": ("sft:SimpleSokoban", False),
        "rl": ("rl:SimpleSokoban", True),
    }
    assert all(row and len(episodes.members("val", 2, row.group_id)) == 1 for row in found.values())
    assert episodes.query("select count(*) from episodes where group_spread > 0") == [(0,)]
    row = found["rl"]
    assert row is not None
    home, alone = episodes.alone(row)
    assert home == whole / "rl" and (alone.tag, alone.group_id) == ("SimpleSokoban", "val-7")


def test_the_first_page_tells_of_every_stage_that_has_begun(whole: Path) -> None:
    episodes = Episodes(RunFolder.find(whole))
    episodes.refresh()
    about = overview(episodes, "")
    assert [(stage["name"], stage["pipeline"]) for stage in about["stages"]] == [("sft", "sft"), ("rl", "agentic")]
    drawn = {chart.title: chart for chart in about["charts"]}
    story = drawn["solved after each stage"]
    assert (story.first, story.last, story.lines[0].last) == (0, 2, 1.0)
    assert {line.name for line in drawn["solved"].lines} == {
        "evaluation · sft:SimpleSokoban",
        "evaluation · rl:SimpleSokoban",
    }
    said = "\n".join(as_text(episodes, Filter()))
    assert "sft (sft): interrupted" in said and "rl:SimpleSokoban rl:val-7/0" in said


def test_a_stage_by_itself_is_a_run_like_any_other(whole: Path) -> None:
    episodes = Episodes(RunFolder.find(whole / "rl"))
    episodes.refresh()
    assert overview(episodes, "")["stages"] == [] and episodes.find("val", 2, "val-7", 0) is not None
