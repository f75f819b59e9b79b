"""Shared set-up: the process settings of a real run, two threads at most, no network, a Ctrl-C that works."""

import gc
import importlib.util
import logging
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.unraisableexception import gc_collect_iterations_key
from hypothesis import settings

from roll.config.process import prepare_process
from roll.envs import ENV_TYPES, TAGS
from tests.programs import FOLDER_VARIABLE, GPU_VARIABLE, offer_warm_processes

pytest_plugins = ["tests.rings", "tests.sharing", "tests.deadline"]

if importlib.util.find_spec("torch") is None:  # make light
    with_torch = re.compile(r"^(import|from) (torch|roll\.(models|pipelines|strategies|workers))\b", re.MULTILINE)
    beside = re.compile(r"^from (\w+) import", re.MULTILINE)
    texts = {path: path.read_text() for path in Path(__file__).parent.rglob("*.py")}
    needs_torch = {path for path, text in texts.items() if with_torch.search(text)}
    # And those whose helpers need it.
    needs_torch |= {
        path
        for path, text in texts.items()
        if any(path.with_name(f"{name}.py") in needs_torch for name in beside.findall(text))
    }
    collect_ignore = [str(path) for path in needs_torch]

prepare_process()
if GPU_VARIABLE not in os.environ and Path("/dev/nvidia0").exists():
    # Tests say to the last digit what the CPU computes, also on a machine with a GPU.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
if "PYTEST_XDIST_WORKER" in os.environ:
    # Processes that share two cores have one thread each; these inherit the variables of the one that started them.
    os.environ["OMP_NUM_THREADS"] = "1"
else:
    os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ["HF_HUB_OFFLINE"] = "1"
# Wherever a test starts Ray itself: its workers are not to starve beside whatever else runs on the machine.
os.environ.setdefault("RAY_worker_niceness", "0")
offer_warm_processes()
os.environ["RAY_RUNTIME_ENV_HOOK"] = "tests.warm_ray.hook"

# What Python does without a handler anyway. Else a library that sets up logging inside a test would give all that is
# logged from then on to the standard error of that test, which is closed.
assert logging.lastResort is not None
logging.getLogger().addHandler(logging.lastResort)

# How long an example takes says what else the machine does.
settings.register_profile("any machine", parent=settings(), deadline=None)
settings.load_profile("any machine")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background: the runs that tests interrupt would inherit that and never hear of Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="module")
def environment_registry_as_it_was() -> Iterator[None]:
    """Forget the tags that a module's fixtures, or runs inside them, registered or redefined."""
    with ENV_TYPES.restored(), TAGS.restored():
        yield


@pytest.fixture(autouse=True)
def environment_registry_as_the_module_has_it(environment_registry_as_it_was: None) -> Iterator[None]:
    """The same for a test."""
    with ENV_TYPES.restored(), TAGS.restored():
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Collect nothing while tests are: of what importing makes, everything stays."""
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what importing made, millions of objects, and look less often at the rest."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let the garbage be collected once at the end and not five times, of all that there is.

    Libraries that count what is left at the end of a process would complain. A forked one has no such end (see
    ``warm_server.Ending``): nothing is left to collect for whoever tries. What is registered first is done last.
    """
    is_forked = "warm_server" in sys.modules
    config.stash[gc_collect_iterations_key] = 0 if is_forked else 1
    if config.getoption("ring") == "quick":
        # An HTTP client takes 20 ms to read all authorities. No quick test asks anybody outside, nor starts who would.
        os.environ["SSL_CERT_DIR"] = os.environ[FOLDER_VARIABLE]
    config.add_cleanup(gc.freeze if is_forked else gc.unfreeze)
