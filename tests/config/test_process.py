from __future__ import annotations

import gc

from roll.config.process import settle_collector


def test_what_settling_the_garbage_collector_changes_can_be_undone() -> None:
    before = gc.get_threshold(), gc.get_freeze_count()
    undo = settle_collector()
    try:
        assert gc.get_threshold()[0] > before[0][0] and gc.get_freeze_count() > before[1]
    finally:
        undo()
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before[0], 0)
