"""A real browser for the pages."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --virtual-time-budget=2000"
).split()


@pytest.fixture
def browse(tmp_path: Path) -> Callable[[str], str]:
    """Return a function from an address to the document a browser made of it."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("no chromium: the job must install one (apt-get install chromium)")
        pytest.skip("no chromium on this machine")

    def open_page(address: str) -> str:
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        result = subprocess.run(
            [found, *FLAGS, profile, "--dump-dom", address], capture_output=True, text=True, timeout=60, check=True
        )
        return result.stdout

    return open_page
