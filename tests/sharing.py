"""Which files share something that is slow to start, and so run in one process when there are several.

``make test`` runs four processes at once (pytest-xdist), and gives each a whole file at a time. The files of a group
are given as one: what the first of them starts, the others find, and with the last it ends (:func:`shared_by_group`).
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from fnmatch import fnmatch
from typing import Any, TypeVar

import pytest

from tests.programs import GPU_VARIABLE
from tests.warm_pytest import PYTHON

Shared = TypeVar("Shared")
_shared: dict[Callable[[], AbstractContextManager[Any]], Any] = {}
_ends = ExitStack()

GROUPS: dict[str, tuple[str, ...]] = {
    "runs in one Ray": (
        "tests/e2e/test_data_plane*",
        "tests/e2e/test_*elsewhere*",
        "tests/e2e/test_ray_runs*",
        "tests/e2e/test_ray_stages*",
    ),
    "engines": ("tests/integration/test_engine*", "tests/integration/test_vllm*"),
    "ranks": (
        "tests/integration/test_convert*",
        "tests/integration/test_deepspeed*",
        "tests/integration/test_fsdp*",
        "tests/integration/test_lora*",
        "tests/integration/test_picture*",
        "tests/integration/test_ulysses*",
    ),
    "ranks of Megatron": ("tests/integration/test_megatron*", "tests/integration/test_predicted*"),
    "runs that join a machine": (
        "tests/e2e/test_*strategies*",
        "tests/e2e/test_ray_experience*",
        "tests/e2e/test_vllm*",
    ),
    "runs that end early": (
        "tests/e2e/test_operators*",
        "tests/e2e/test_record*",
        "tests/e2e/test_resume*",
        "tests/e2e/test_rlvr*",
        "tests/e2e/test_seats*",
    ),
    "a real model": ("tests/e2e/test_real*",),
    "lost machines": ("tests/e2e/test_ray_losses*",),
}
"""Groups and the files of each, the longest first: what is long is not to begin when all else is done.

Those with a Ray of their own do not begin at once: together they start dozens of processes on two cores.
A file is in the first group that names it."""


def group_of(file: str) -> str:
    """Return the group of a test file, its path from the root; a file that shares nothing is a group of its own."""
    return next((name for name, files in GROUPS.items() if any(fnmatch(file, one) for one in files)), file)


def shared_by_group(make: Callable[[], AbstractContextManager[Shared]]) -> Shared:
    """Return what ``make`` makes, the same for all tests of a group, behind the last of which it ends.

    An idle Ray takes two hundredths of a processor, and a rank that waits half a gigabyte.
    """
    if make not in _shared:
        _shared[make] = _ends.enter_context(make())
    found: Shared = _shared[make]
    return found


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End what the tests of a group share."""
    if nextitem is None or group_of(_file(item.nodeid)) != group_of(_file(nextitem.nodeid)):
        _shared.clear()
        _ends.close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the longest groups, where processes take turns; else leave the order as it is."""
    if hasattr(config, "workerinput"):
        places = {name: place for place, name in enumerate(GROUPS)}
        items.sort(key=lambda item: places.get(group_of(_file(item.nodeid)), len(places)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: Sequence[Any]) -> None:
    """Fork the processes from one that has imported most of what they import.

    ``make light`` has none of that, and a process that has seen a GPU cannot be forked.
    """
    if importlib.util.find_spec("torch") is not None and GPU_VARIABLE not in os.environ:
        for spec in specs:
            spec.python = PYTHON


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return what gives whole groups to processes, for ``--dist loadfile``."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        """Gives groups; and, where a process dies, what was left of its groups to another.

        By itself xdist 3.8 (its issues 1323 and 1362) gives also what was done, and waits forever for its end; the test
        that the process died of, again and again; and to processes that have collected nothing yet.
        """

        def _split_scope(self, nodeid: str) -> str:
            return group_of(_file(nodeid))

        def remove_node(self, node: Any) -> str | None:
            groups = self.assigned_work.pop(node).values()
            pending = [nodeid for tests in groups for nodeid, done in tests.items() if not done]
            for nodeid in pending[1:]:  # the first is what it died of
                self.workqueue.setdefault(self._split_scope(nodeid), {})[nodeid] = False
            for other in self.nodes if pending[1:] else ():
                self._reschedule(other)
            return pending[0] if pending else None

        def _reschedule(self, node: Any) -> None:
            if node in self.registered_collections:
                super()._reschedule(node)
                if not self.workqueue and not node.shutting_down:
                    node.shutdown()  # else it waits for one more before it runs its last

    config.option.loadscopereorder = False
    return Groups(config, log)


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]
