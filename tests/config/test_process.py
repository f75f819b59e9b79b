from __future__ import annotations

import gc

import pytest

from roll.config.process import collector_waits, settle_collector

PYTHONS_OWN = (700, 10, 10)


def test_what_settling_the_garbage_collector_changes_can_be_undone() -> None:
    tests_have, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.set_threshold(*PYTHONS_OWN)
    try:
        undo = settle_collector()
        try:
            assert gc.get_threshold()[0] > PYTHONS_OWN[0] and gc.get_freeze_count() > frozen
        finally:
            undo()
        assert (gc.get_threshold(), gc.get_freeze_count()) == (PYTHONS_OWN, 0)
    finally:
        gc.set_threshold(*tests_have)


def test_the_collector_waits_for_imports_and_then_looks_at_what_is_new_alone() -> None:
    frozen = gc.get_freeze_count()
    with collector_waits() as imported:
        assert not gc.isenabled()
        imported()
        assert gc.isenabled() and gc.get_freeze_count() > frozen
    assert gc.isenabled() and gc.get_freeze_count() == 0
    with pytest.raises(ValueError), collector_waits():
        raise ValueError
    assert gc.isenabled()
