"""An explorer takes the weights that its style of synchronisation promises, and waits for no others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from roll.config.experience_sync import SyncConfig
from roll.pipelines.experience.syncing import Synchronizer, SyncRequests, due_version
from roll.runs.layout import CHECKPOINTS, folder_of
from roll.runs.outcome import outcome_recorded
from roll.schedulers.groups import RolloutError


def checkpoint(run: Path, step: int) -> None:
    folder_of(run / CHECKPOINTS, step).mkdir(parents=True)


async def both(waiting: Awaitable[object], then: Callable[[], object]) -> object:
    """Return what comes of waiting, which is not over before something happens."""
    task = asyncio.ensure_future(waiting)
    await asyncio.sleep(0.3)
    assert not task.done()
    then()
    return await asyncio.wait_for(task, 10)


@pytest.mark.parametrize("interval", [1, 2, 3, 7])
@pytest.mark.parametrize("offset", [0, 1, 2, 5])
def test_in_the_fixed_style_no_step_is_staler_than_promised_and_some_are_as_stale(interval: int, offset: int) -> None:
    config = SyncConfig(interval=interval, offset=offset)
    stale = []
    for step in range(1, 60):
        version = due_version(config, step)
        assert version % interval == 0, "there is a checkpoint of it"
        assert version <= max(0, step - 1 - offset), "the trainer can be there when the explorer needs it"
        stale.append(step - 1 - version)
    assert max(stale) == offset + interval - 1


@pytest.mark.parametrize(("interval", "offset"), [(1, 0), (2, 0), (2, 1), (3, 5)])
def test_so_many_checkpoints_are_enough_for_an_explorer_that_is_behind(interval: int, offset: int) -> None:
    config = SyncConfig(interval=interval, offset=offset)
    for step in range(1, 60):
        # The trainer has learned from all steps that were sampled, and saved at each interval.
        saved = [version for version in range(1, step) if version % interval == 0]
        version = due_version(config, step)
        assert not version or version in saved[-config.kept :]


def test_a_fixed_explorer_waits_for_its_version_and_takes_no_newer_one(tmp_path: Path) -> None:
    follows = Synchronizer(SyncConfig(interval=2), tmp_path, None)
    assert asyncio.run(follows.before(1, 0)) is None and asyncio.run(follows.before(2, 0)) is None
    found = asyncio.run(both(follows.before(3, 0), lambda: checkpoint(tmp_path, 2)))
    assert found == (2, folder_of(tmp_path / CHECKPOINTS, 2))
    checkpoint(tmp_path, 4)
    assert asyncio.run(follows.before(4, 2)) is None
    checkpoint(tmp_path, 6)
    assert asyncio.run(follows.before(5, 2)) == (4, folder_of(tmp_path / CHECKPOINTS, 4))


def test_a_checkpoint_that_was_removed_is_an_error_and_one_that_never_comes_one_in_time(tmp_path: Path) -> None:
    checkpoint(tmp_path, 6)
    with pytest.raises(RolloutError, match=r"no checkpoint of step 2 any more: raise checkpoint_config.keep"):
        asyncio.run(Synchronizer(SyncConfig(interval=2), tmp_path, None).before(3, 0))
    with pytest.raises(RolloutError, match=r"a checkpoint of step 8 within experience.sync.timeout=0.3 s"):
        asyncio.run(Synchronizer(SyncConfig(interval=2, timeout=0.3), tmp_path, None).before(9, 6))


def test_the_trainer_sets_the_pace_where_it_is_to(tmp_path: Path) -> None:
    for config in (None, SyncConfig(style="dynamic_by_trainer", interval=3)):
        follows = Synchronizer(config, tmp_path, None)
        assert asyncio.run(follows.before(7, 99)) is None
    assert asyncio.run(follows.before(2, 0)) is None, "it does not wait"
    checkpoint(tmp_path, 3)
    checkpoint(tmp_path, 6)
    assert asyncio.run(follows.before(2, 0)) == (6, folder_of(tmp_path / CHECKPOINTS, 6))


def test_the_explorer_sets_the_pace_where_it_is_to(tmp_path: Path) -> None:
    config = SyncConfig(style="dynamic_by_explorer", interval=2)
    follows, asked = Synchronizer(config, tmp_path, "team/one"), SyncRequests(tmp_path)
    checkpoint(tmp_path, 5)
    assert asyncio.run(follows.before(1, 0)) is None and asyncio.run(follows.before(2, 0)) is None
    assert not asked.pending()

    def answer() -> None:
        (request,) = asked.pending()
        checkpoint(tmp_path, 9)
        asked.answer([request])

    found = asyncio.run(both(follows.before(3, 0), answer))
    assert found == (9, folder_of(tmp_path / CHECKPOINTS, 9)) and not asked.pending()
    assert asyncio.run(follows.before(4, 9)) is None and not asked.pending()
    found = asyncio.run(both(follows.before(5, 9), lambda: asked.answer(asked.pending())))
    assert found is None, "nothing was learned meanwhile"


@pytest.mark.parametrize("style", ["fixed", "dynamic_by_explorer"])
def test_nobody_waits_for_a_run_that_has_ended(style: str, tmp_path: Path) -> None:
    checkpoint(tmp_path, 2)
    follows = Synchronizer(SyncConfig.model_validate({"style": style, "interval": 4}), tmp_path, None)

    def end() -> None:
        with outcome_recorded(tmp_path, lambda: True):
            pass

    found = asyncio.run(both(follows.before(9, 0), end))
    assert found == (2, folder_of(tmp_path / CHECKPOINTS, 2))
