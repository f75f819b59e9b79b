"""What a script registers reaches the workers: real Ray, a script of its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

SCRIPT = Path(__file__).with_name("script_of_a_user.py")


@pytest.mark.exhaustive
@pytest.mark.processes
def test_environments_losses_estimators_and_verifiers_of_a_script_are_known_in_its_workers(tmp_path: Path) -> None:
    # The hook is beside these tests, which this program does not find.
    variables = {name: value for name, value in os.environ.items() if name != "RAY_RUNTIME_ENV_HOOK"}
    # Elsewhere than the script, so that the worker cannot import what it is to be sent.
    ran = subprocess.run(
        [sys.executable, str(SCRIPT)],
        cwd=tmp_path,
        env=variables | {"PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("RESULT ")]
    found = json.loads(line.removeprefix("RESULT "))
    assert found.pop("pid") != found.pop("driver")
    assert found.pop("engine") == "an engine for ours"
    assert found == {"observation": "7", "reward": 1.0, "loss": 2.0, "advantage": 42, "score": 1.0}
