"""The script that draws the dashboard for the documentation."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from roll.tracking import make_trackers

SCRIPT = Path(__file__).parents[2] / "scripts" / "dashboard_picture.py"


@pytest.mark.exhaustive
@pytest.mark.processes
def test_the_picture_of_a_run_is_an_svg_that_loads_nothing(tmp_path: Path) -> None:
    with make_trackers("jsonl", log_dir=tmp_path) as tracker:
        tracker.log({"val/success": 0.5, "val/reward": 1.0}, 0)
        for step in range(1, 21):
            shown = {"reward/mean": step / 10, "rollout/success": 0.5}
            tracker.log({**shown, "time/rollout": 4.0, "time/elapsed": 5.0 * step}, step)
        tracker.log({"val/success": 0.75, "val/reward": 2.0}, 20)
    picture = tmp_path / "images" / "dashboard.svg"
    command = [sys.executable, str(SCRIPT), str(tmp_path / "metrics.jsonl"), str(picture), "--at-step", "10"]
    subprocess.run([*command, "--size", "80x24"], check=True, env={"PYTHONPATH": str(SCRIPT.parents[1])})
    text = " ".join("".join(ElementTree.parse(picture).getroot().itertext()).replace("\xa0", " ").split())
    assert "step 10/20" in text and "eta 0:50" in text and "50.0% (after step 0)" in text
    assert not re.search(r"url\(['\"]?http|@import|@font-face", picture.read_text(encoding="utf-8"))
