from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from roll.config.process import collector_waits, have_frozen, settle_collector

PYTHONS_OWN = (700, 10, 10)


@pytest.fixture(params=[False, True], ids=["nothing frozen", "frozen before"])
def frozen_before(request: pytest.FixtureRequest) -> Iterator[bool]:
    """A collector as Python has it, and one that has what was imported frozen, as that of these tests."""
    thresholds = gc.get_threshold()
    gc.unfreeze()
    if request.param:
        gc.freeze()
    gc.set_threshold(*PYTHONS_OWN)
    yield request.param
    gc.set_threshold(*thresholds)
    gc.freeze()


def test_what_settling_the_garbage_collector_changes_can_be_undone(frozen_before: bool) -> None:
    frozen = gc.get_freeze_count()
    undo = settle_collector()
    assert gc.get_threshold()[0] > PYTHONS_OWN[0]
    assert have_frozen() and (not frozen_before or gc.get_freeze_count() == frozen)
    undo()
    assert gc.get_threshold() == PYTHONS_OWN and have_frozen() == frozen_before


def test_the_collector_waits_for_imports_and_then_looks_at_what_is_new_alone(frozen_before: bool) -> None:
    with collector_waits() as imported:
        assert not gc.isenabled()
        imported()
        assert gc.isenabled() and have_frozen()
    assert gc.isenabled() and have_frozen() == frozen_before
    with pytest.raises(ValueError), collector_waits():
        raise ValueError
    assert gc.isenabled() and have_frozen() == frozen_before
