"""The script that takes the pictures of the review for the documentation."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .test_server import learn, members, store

SCRIPT = Path(__file__).parents[2] / "scripts" / "review_pictures.py"


@pytest.mark.processes
@pytest.mark.exhaustive
def test_there_is_a_picture_of_every_page(tmp_path: Path) -> None:
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        pytest.skip("no chromium on this machine")
    store(tmp_path / "run", 1, members(1))
    learn(tmp_path / "run")
    words = [sys.executable, str(SCRIPT), str(tmp_path / "run"), str(tmp_path / "pictures"), "--width", "390", "--dark"]
    subprocess.run(words, check=True, timeout=240, env={"PYTHONPATH": str(SCRIPT.parents[1]), "PATH": "/usr/bin:/bin"})
    taken = sorted(path.name for path in (tmp_path / "pictures").iterdir())
    assert taken == [f"review_{name}.png" for name in ("branch", "episode", "episodes", "group", "overview", "tokens")]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (tmp_path / "pictures").iterdir())
