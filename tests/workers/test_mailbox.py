"""The engine's end of the mailboxes, in this process; the engine is a fake."""

from __future__ import annotations

import asyncio
import pickle
import time

import pytest
from fake_engines import FakeEngine, Log, Refused, Stubborn, request

from roll.distributed import WorkerCallError
from roll.schedulers.replicas import ReplicaDown
from roll.strategies.base import Completion
from roll.workers import mailbox
from roll.workers.mailbox import MailboxWorker, portable


def test_answers_wait_for_their_client_and_are_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "POLL_SECONDS", 0.05)

    async def play() -> None:
        worker = MailboxWorker(FakeEngine(Log()))
        await worker.submit("a", [request("answer 1", 1), request("answer 2", 2)])
        await worker.submit("b", [request("answer 3", 3)])
        found = dict(await worker.collect("a"))
        assert {name: answer.token_ids for name, answer in found.items() if isinstance(answer, Completion)} == {
            "answer 1": [1],
            "answer 2": [2],
        }
        assert await worker.collect("a") == []
        ((name, _),) = await worker.collect("b")
        assert name == "answer 3"

    asyncio.run(play())


def test_answers_that_finish_soon_after_each_other_are_fetched_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "GATHER_SECONDS", 0.5)

    async def play() -> None:
        worker = MailboxWorker(FakeEngine(Log()))
        # "soon" takes 0.2 s, the other one no time.
        await worker.submit("a", [request("soon"), request("answer")])
        begun = time.monotonic()
        assert sorted(name for name, _ in await worker.collect("a")) == ["answer", "soon"]
        assert time.monotonic() - begun >= 0.5

    asyncio.run(play())


def test_an_engine_that_closes_tells_those_who_wait() -> None:
    async def play() -> None:
        worker = MailboxWorker(FakeEngine(Log()))
        await worker.submit("a", [request("wait 1"), request("wait 2")])
        asked = asyncio.create_task(worker.collect("a"))
        await asyncio.sleep(0.01)
        await worker.close()
        answers = dict(await asked)
        assert sorted(answers) == ["wait 1", "wait 2"]
        assert all(isinstance(answer, ReplicaDown) for answer in answers.values())

    asyncio.run(asyncio.wait_for(play(), 5))


def test_exceptions_travel_with_their_traceback_or_are_told_about() -> None:
    try:
        raise Refused("no")
    except Refused as caught:
        arrived = pickle.loads(pickle.dumps(portable(caught)))
    assert (type(arrived), str(arrived)) == (Refused, "no")
    assert 'raise Refused("no")' in arrived.__notes__[0]
    told = pickle.loads(pickle.dumps(portable(Stubborn(1, 2))))
    assert isinstance(told, WorkerCallError)
    assert (told.kind, told.message) == ("fake_engines.Stubborn", "1 and 2")
