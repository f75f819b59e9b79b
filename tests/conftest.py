"""Shared set-up: the process settings of a real run, two threads at most, no network, a Ctrl-C that works."""

import importlib.util
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from roll.config.process import prepare_process
from roll.envs import ENV_TYPES, TAGS

pytest_plugins = ["tests.rings"]

if importlib.util.find_spec("torch") is None:  # make light
    with_torch = re.compile(r"^(import|from) (torch|roll\.(models|pipelines|strategies|workers))\b", re.MULTILINE)
    collect_ignore = [str(path) for path in Path(__file__).parent.rglob("*.py") if with_torch.search(path.read_text())]

prepare_process()
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ["HF_HUB_OFFLINE"] = "1"
# Wherever a test starts Ray itself: its workers are not to starve beside whatever else runs on the machine.
os.environ.setdefault("RAY_worker_niceness", "0")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background: the runs that tests interrupt would inherit that and never hear of Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def environment_registry_as_it_was() -> Iterator[None]:
    """Forget the tags that a test, or a run inside it, registered or redefined."""
    with ENV_TYPES.restored(), TAGS.restored():
        yield
