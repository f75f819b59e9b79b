"""An explorer takes the weights that its style of synchronisation promises, by each method, and waits for no others."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from roll.config import RunError
from roll.config.experience_sync import SyncConfig
from roll.pipelines.experience import syncing
from roll.pipelines.experience.exchanging import ExchangedVersions, OfferedVersions
from roll.pipelines.experience.syncing import (
    CheckpointVersions,
    Seen,
    Synchronizer,
    SyncRequests,
    Versions,
    due_version,
)
from roll.runs.layout import CHECKPOINTS, folder_of
from roll.runs.outcome import outcome_recorded
from roll.schedulers.groups import RolloutError

pytest.importorskip("ray")

from roll.distributed.weight_exchange import WeightExchange  # noqa: E402
from roll.distributed.weight_exchange.host import WeightHost  # noqa: E402
from roll.workers.offered_weights import Offering  # noqa: E402


class ExchangeHere(WeightExchange):
    """A fake of the cluster: the actor's own class, called in this process."""

    def __init__(self) -> None:
        super().__init__("shared", "roll")
        self.host = WeightHost()

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self.host, method)(*args)


class Roles:
    """A fake of the roles of a trainer: its weights are nothing, and devices are not shared."""

    def __init__(self) -> None:
        self.devices = self.trainer = self

    @asynccontextmanager
    async def trainer_weights(self) -> AsyncIterator[None]:
        yield

    async def offer_weights(self, offering: Offering, version: int) -> None:
        manifest = "[]" if offering.method == "memory" else None
        assert offering.exchange.call("offer", version, offering.kept, manifest)

    async def stop_offering(self) -> None:
        pass


class ByCheckpoints:
    """A run that learns and writes checkpoints, as ``RLPipeline.saves`` and ``save`` do."""

    is_sent = False

    def __init__(self, folder: Path, config: SyncConfig) -> None:
        self.folder, self.config, self.version = folder, config, 0

    def versions(self, writer: str | None = None) -> Versions:
        return CheckpointVersions(self.folder, writer)

    def asked(self) -> int:
        return len(SyncRequests(self.folder).pending())

    async def learned(self, step: int) -> None:
        self.version = step
        if self.config.is_due(step) or self.asked():
            await self.save()

    async def waiting(self) -> None:
        if self.asked():
            await self.save()

    async def save(self) -> None:
        requests = SyncRequests(self.folder)
        pending = requests.pending()
        if self.version:
            folder_of(self.folder / CHECKPOINTS, self.version).mkdir(parents=True, exist_ok=True)
        requests.answer(pending)

    async def end(self) -> None:
        with outcome_recorded(self.folder, lambda: True):
            pass


class ByExchange:
    """A run that learns and offers its weights in a cluster."""

    def __init__(self, config: SyncConfig, exchange: ExchangeHere | None = None, step: int = 0) -> None:
        assert config.method != "checkpoint"
        self.exchange = exchange or ExchangeHere()
        self.is_sent = config.method != "memory"
        kept = config.kept if config.style == "fixed" else 1
        offering = Offering(self.exchange, uuid.uuid4().hex, config.method, kept, None, 2**20)
        self.offers: Any = OfferedVersions(offering, config)
        asyncio.run(self.offers.begin(Roles(), step))

    def versions(self, writer: str | None = None) -> Versions:
        return ExchangedVersions(self.exchange, writer)

    def asked(self) -> int:
        return len(self.exchange.host.standing().asking)

    async def learned(self, step: int) -> None:
        await self.offers.learned(Roles(), step)

    async def waiting(self) -> None:
        await self.offers.waiting(Roles())

    async def end(self) -> None:
        await self.offers.finish(Roles())


Learner = ByCheckpoints | ByExchange
Start = Callable[[SyncConfig], Learner]


@pytest.fixture(params=["checkpoint", "memory", "gloo"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    """What begins a run that learns, by each method of synchronisation."""

    def begin(config: SyncConfig) -> Learner:
        chosen = config.model_copy(update={"method": request.param})
        return ByCheckpoints(tmp_path, chosen) if request.param == "checkpoint" else ByExchange(chosen)

    return begin


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncing, "_LOOK_EVERY", 0.002)


async def both(waiting: Awaitable[object], then: Callable[[], Awaitable[None]]) -> object:
    """Return what comes of waiting, which is not over before something happens."""
    task = asyncio.ensure_future(waiting)
    await asyncio.sleep(0.05)
    assert not task.done()
    await then()
    return await asyncio.wait_for(task, 10)


@pytest.mark.parametrize("interval", [1, 2, 3, 7])
@pytest.mark.parametrize("offset", [0, 1, 2, 5])
def test_in_the_fixed_style_no_step_is_staler_than_promised_and_some_are_as_stale(interval: int, offset: int) -> None:
    config = SyncConfig(interval=interval, offset=offset)
    stale = []
    for step in range(1, 60):
        version = due_version(config, step)
        assert version % interval == 0, "the trainer gives it"
        assert version <= max(0, step - 1 - offset), "the trainer can be there when the explorer needs it"
        stale.append(step - 1 - version)
    assert max(stale) == offset + interval - 1


@pytest.mark.parametrize(("interval", "offset"), [(1, 0), (2, 0), (2, 1), (3, 5)])
def test_so_many_versions_are_enough_for_an_explorer_that_is_behind(interval: int, offset: int) -> None:
    config = SyncConfig(interval=interval, offset=offset)
    for step in range(1, 60):
        # The trainer has learned from all steps that were sampled, and given its weights at each interval.
        given = [version for version in range(1, step) if version % interval == 0]
        version = due_version(config, step)
        assert not version or version in given[-config.kept :]


def test_a_fixed_explorer_waits_for_its_version_and_takes_no_newer_one(start: Start) -> None:
    config = SyncConfig(interval=2)
    learner = start(config)
    follows = Synchronizer(config, learner.versions())
    assert asyncio.run(follows.before(1, 0)) is None and asyncio.run(follows.before(2, 0)) is None
    asyncio.run(learner.learned(1))
    assert asyncio.run(both(follows.before(3, 0), lambda: learner.learned(2))) == 2
    asyncio.run(learner.learned(4))
    assert asyncio.run(follows.before(4, 2)) is None
    asyncio.run(learner.learned(6))
    assert asyncio.run(follows.before(5, 2)) == 4


def test_a_version_that_was_removed_is_an_error_and_one_that_never_comes_one_in_time(start: Start) -> None:
    config = SyncConfig(interval=2)
    learner = start(config)
    asyncio.run(learner.learned(6))
    with pytest.raises(RolloutError, match=r"no weights of step 2 any more: .* the same"):
        asyncio.run(Synchronizer(config, learner.versions()).before(3, 0))
    with pytest.raises(RolloutError, match=r"the weights of step 8 within experience.sync.timeout=0.1 s"):
        asyncio.run(Synchronizer(SyncConfig(interval=2, timeout=0.1), learner.versions()).before(9, 6))


def test_the_trainer_sets_the_pace_where_it_is_to(start: Start) -> None:
    config = SyncConfig(style="dynamic_by_trainer", interval=3)
    learner = start(config)
    assert asyncio.run(Synchronizer(None, learner.versions()).before(7, 99)) is None
    follows = Synchronizer(config, learner.versions())
    assert asyncio.run(follows.before(2, 0)) is None, "it does not wait"
    for step in range(1, 8):
        asyncio.run(learner.learned(step))
    assert asyncio.run(follows.before(2, 0)) == 6 and asyncio.run(follows.before(3, 6)) is None


def test_the_explorer_sets_the_pace_where_it_is_to(start: Start) -> None:
    config = SyncConfig(style="dynamic_by_explorer", interval=2)
    learner = start(config)
    follows = Synchronizer(config, learner.versions("team/one"))
    for step in range(1, 6):
        asyncio.run(learner.learned(step))
    assert asyncio.run(follows.before(1, 0)) is None and asyncio.run(follows.before(2, 0)) is None
    assert not learner.asked() and not learner.versions().look().versions

    async def answer() -> None:
        assert learner.asked() == 1
        await learner.learned(6)

    assert asyncio.run(both(follows.before(3, 0), answer)) == 6 and not learner.asked()
    assert asyncio.run(follows.before(4, 6)) is None and not learner.asked()
    found = asyncio.run(both(follows.before(5, 6), learner.waiting))
    assert found is None, "nothing was learned meanwhile"
    asyncio.run(learner.learned(7))
    assert asyncio.run(both(follows.before(7, 6), learner.waiting)) == 7


@pytest.mark.parametrize("style", ["fixed", "dynamic_by_explorer"])
def test_nobody_waits_for_a_run_that_has_ended(style: Any, start: Start) -> None:
    config = SyncConfig(style=style, interval=4)
    learner = start(config)
    asyncio.run(learner.learned(4))
    follows = Synchronizer(config, learner.versions())
    found = asyncio.run(both(follows.before(13, 0), learner.end))
    is_there = style == "fixed" and not learner.is_sent
    assert found == (4 if is_there else None), "what a trainer would have to send ends with it"


STYLES = {
    "fixed": SyncConfig(interval=2, offset=1),
    "far ahead": SyncConfig(interval=2, offset=3),
    "dynamic_by_trainer": SyncConfig(style="dynamic_by_trainer", interval=2),
    "dynamic_by_explorer": SyncConfig(style="dynamic_by_explorer", interval=2),
}
AHEAD = 4


@pytest.mark.parametrize("faster", ["explorer", "trainer", "neither"])
@pytest.mark.parametrize("style", STYLES)
def test_no_step_is_staler_than_its_style_promises_whoever_is_faster(style: str, faster: str, start: Start) -> None:
    config, steps, sampled, learned = STYLES[style], 14, list[int](), 0
    learner = start(config)
    follows = Synchronizer(config, learner.versions())

    async def explore() -> None:
        version = 0
        for step in range(1, steps + 1):
            while step - 1 - learned >= AHEAD:
                await asyncio.sleep(0.001)
            version = await asyncio.wait_for(follows.before(step, version), 10) or version
            await asyncio.sleep(0.005 if faster == "trainer" else 0)
            sampled.append(version)

    async def train() -> None:
        nonlocal learned
        for step in range(1, steps + 1):
            while len(sampled) < step:
                await learner.waiting()
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.005 if faster == "explorer" else 0)
            learned = step
            await learner.learned(step)

    async def run() -> None:
        await asyncio.gather(explore(), train())

    asyncio.run(run())
    stale = [step - 1 - version for step, version in enumerate(sampled, start=1)]
    assert min(stale) >= 0 and sampled == sorted(sampled) and max(sampled) > 0
    if config.style == "fixed":
        assert sampled == [due_version(config, step) for step in range(1, steps + 1)]
        assert max(stale) == config.offset + config.interval - 1
    else:
        assert max(stale) <= AHEAD + config.interval - 1


@pytest.mark.parametrize("method", ["memory", "gloo"])
def test_a_trainer_that_goes_on_offers_what_explorers_may_need_and_nothing_that_it_has_not(method: Any) -> None:
    """What lies in the cluster outlives the trainer, up to the step that it goes on from; what it sends does not."""
    config = SyncConfig(method=method, interval=2)
    first = ByExchange(config)
    for step in range(1, 8):
        asyncio.run(first.learned(step))
    assert first.versions().look() == Seen((4, 6), is_over=False), "no more are kept than an explorer may need"
    second = ByExchange(config, first.exchange, step=5)
    assert second.versions().look() == Seen((4,) if method == "memory" else (), is_over=False, begun_at=5)
    with pytest.raises(RolloutError, match="no weights of step 2 any more: it was continued behind it"):
        asyncio.run(Synchronizer(config, second.versions()).before(3, 0))
    asyncio.run(second.learned(6))
    assert second.versions().look().versions == ((4, 6) if method == "memory" else (6,))
    with pytest.raises(RunError, match="Another run gives its weights .* 'shared'"):
        asyncio.run(first.waiting())
    third = ByExchange(config, first.exchange, step=6)
    assert third.versions().look().versions[-1] == 6, "it has them, and offers them at once"


def test_what_the_actor_forgot_when_it_was_made_again_is_offered_again() -> None:
    config = SyncConfig(method="memory", style="dynamic_by_trainer", interval=2)
    learner = ByExchange(config)
    for step in range(1, 6):
        asyncio.run(learner.learned(step))
    assert learner.versions().look() == Seen((4,), is_over=False), "the newest alone is kept"
    learner.exchange.host = WeightHost()
    assert learner.versions().look() == Seen((), is_over=False)
    asyncio.run(learner.waiting())
    assert learner.versions().look() == Seen((5,), is_over=False, begun_at=5)
