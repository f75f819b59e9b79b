import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.processes
@pytest.mark.skipif(not Path("/usr/games/advent").exists(), reason="the package open-adventure is not installed")
def test_the_catalogue_shows_what_the_tags_are():
    script = str(ROOT / "scripts" / "generate_env_catalogue.py")
    result = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, cwd=ROOT)
    assert (result.returncode, result.stderr) == (0, "")
