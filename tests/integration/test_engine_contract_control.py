"""What every generation engine does, real or double: requests end early, freeze, and go on under new weights."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import torch
from engines import LONG, EngineUnderTest, Says, random_prompt

from roll.generation import Completion, SamplingParams

PROMPT = random_prompt(300, 5)
"""Longer than what engines cache in one piece."""
GREEDY = SamplingParams(temperature=0.0)


def test_abort_returns_what_there_is(engine: EngineUnderTest) -> None:
    async def scenario() -> Completion:
        request_id, task = await engine.started(PROMPT)
        await engine.engine.abort(request_id)
        return await asyncio.wait_for(task, 100)

    got = engine.run(scenario())
    assert got.finish_reason == "abort"
    assert 0 < len(got.token_ids) < LONG
    assert engine.difference(PROMPT, got, SamplingParams()) < 1e-4


def test_abort_before_the_first_token_and_of_ids_that_nobody_has(engine: EngineUnderTest) -> None:
    async def scenario() -> Completion:
        await engine.engine.abort("nobody has this id")
        request = engine.request(PROMPT, max_new_tokens=LONG)
        task = asyncio.create_task(engine.engine.generate(request))
        await asyncio.sleep(0)
        await engine.engine.abort(request.request_id)
        got = await asyncio.wait_for(task, 100)
        await engine.engine.abort(request.request_id)
        # The id is free again, and its end is forgotten.
        again = replace(request, sampling=SamplingParams(max_new_tokens=3))
        assert (await engine.engine.generate(again)).finish_reason == "length"
        return got

    got = engine.run(scenario())
    assert got.finish_reason == "abort"
    assert len(got.token_ids) == len(got.logprobs) < LONG


def test_abort_ends_one_request_and_none_whose_id_begins_alike(engine: EngineUnderTest) -> None:
    async def scenario() -> tuple[Completion, Completion]:
        short, longer = engine.request([5], max_new_tokens=LONG), engine.request([5], max_new_tokens=60)
        longer = replace(longer, request_id=short.request_id + "0")
        tasks = [asyncio.create_task(engine.engine.generate(request)) for request in (short, longer)]
        await asyncio.sleep(0)
        await engine.engine.generate(engine.request([6], max_new_tokens=4))
        await engine.engine.abort(short.request_id)
        return await tasks[0], await tasks[1]

    aborted, other = engine.run(scenario())
    assert aborted.finish_reason == "abort"
    assert (len(other.token_ids), other.finish_reason) == (60, "length")


def test_an_id_that_is_running_is_refused(engine: EngineUnderTest) -> None:
    async def scenario() -> None:
        request_id, task = await engine.started(PROMPT)
        with pytest.raises(ValueError, match="already running"):
            await engine.engine.generate(replace(engine.request([5]), request_id=request_id))
        await engine.engine.abort(request_id)
        assert (await task).finish_reason == "abort"

    engine.run(scenario())


def test_cancelling_the_caller_ends_the_request(engine: EngineUnderTest) -> None:
    async def scenario() -> None:
        request_id, task = await engine.started(PROMPT)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Its id can be used again at once.
        request = replace(engine.request([5], max_new_tokens=2), request_id=request_id)
        assert len((await engine.engine.generate(request)).token_ids) == 2

    engine.run(scenario())


def test_a_pause_freezes_requests_which_go_on_as_if_nothing_had_been(engine: EngineUnderTest) -> None:
    async def scenario() -> Completion:
        _, task = await engine.started(PROMPT, temperature=0.0)
        await engine.engine.pause()
        try:
            newcomer = asyncio.create_task(engine.engine.generate(engine.request([5], max_new_tokens=1)))
            unwanted = engine.request([5], max_new_tokens=1)
            ended = asyncio.create_task(engine.engine.generate(unwanted))
            await asyncio.sleep(0.3)
            assert not task.done()
            assert not newcomer.done()
            await engine.engine.abort(unwanted.request_id)
        finally:  # or the tests behind this one would wait for ever
            await engine.engine.resume()
        assert (await ended).finish_reason == "abort"
        assert len((await newcomer).token_ids) == 1
        return await task

    got = engine.run(scenario())
    assert got.token_ids == engine.says.greedy(PROMPT, LONG)
    assert engine.difference(PROMPT, got, GREEDY) < 1e-4


def test_an_engine_sleeps_takes_new_weights_and_then_its_cache(engine: EngineUnderTest) -> None:
    """What roles that share a device do every step."""

    async def scenario() -> Completion:
        _, task = await engine.started(PROMPT, temperature=0.0)
        await engine.engine.sleep()
        await engine.engine.wake(["weights"])
        await engine.update(engine.changed(11))
        await asyncio.sleep(0.2)
        assert not task.done()
        await engine.engine.wake(["kv_cache"])
        return await task

    old, version = engine.says, engine.version
    got = engine.run(scenario())
    assert len(got.token_ids) == LONG
    assert got.policy_version == (version, version + 1)
    check_changes_once(got, old, engine.says, GREEDY)


def check_changes_once(got: Completion, old: Says, new: Says, sampling: SamplingParams) -> None:
    """All tokens up to some point are exactly the old model's, all later ones exactly the new one's."""
    reported = torch.tensor(got.logprobs)
    by_old = (old.log_probs(PROMPT, got.token_ids, sampling) - reported).abs() < 1e-4
    by_new = (new.log_probs(PROMPT, got.token_ids, sampling) - reported).abs() < 1e-4
    switches = [k for k in range(len(reported) + 1) if bool(by_old[:k].all()) and bool(by_new[k:].all())]
    assert switches
    assert 0 < switches[-1] <= len(reported) and switches[0] < len(reported)


def test_a_request_that_spans_an_update_goes_on_exactly_under_the_new_weights(engine: EngineUnderTest) -> None:
    old, version = engine.says, engine.version

    async def scenario() -> Completion:
        _, task = await engine.started(PROMPT)
        await engine.update(engine.changed(7))
        return await task

    got = engine.run(scenario())
    assert got.policy_version == (version, version + 1)
    assert len(got.token_ids) == LONG
    check_changes_once(got, old, engine.says, SamplingParams())


@pytest.mark.exhaustive
def test_an_update_leaves_a_paused_engine_paused(engine: EngineUnderTest) -> None:
    async def scenario() -> Completion:
        _, task = await engine.started(PROMPT)
        await engine.engine.pause()
        await engine.update(engine.changed(8))
        await asyncio.sleep(0.2)
        assert not task.done()
        await engine.engine.resume()
        return await task

    old, version = engine.says, engine.version
    got = engine.run(scenario())
    assert got.policy_version == (version, version + 1)
    check_changes_once(got, old, engine.says, SamplingParams())


def test_an_update_replaces_all_weights_and_every_cached_prefix(engine: EngineUnderTest) -> None:
    engine.generate(PROMPT, session="s", max_new_tokens=1)
    for seed in (1, 2):
        engine.run(engine.update(engine.changed(seed)))
        got = engine.generate(PROMPT, session="s", max_new_tokens=16, temperature=0.0)
        assert got.cached_tokens == 0
        assert got.policy_version == (engine.version, engine.version)
        assert got.token_ids == engine.says.greedy(PROMPT, 16)
        assert engine.difference(PROMPT, got, GREEDY) < 1e-4
        # The next one finds the prompt, as the new weights computed it.
        got = engine.generate(PROMPT, session="s", max_new_tokens=16, temperature=0.0)
        assert (got.cached_tokens > 0) == engine.keeps_prefixes
        assert got.cached_tokens <= len(PROMPT)
        assert engine.difference(PROMPT, got, GREEDY) < 1e-4
    engine.run(engine.engine.release("s"))


def test_the_version_can_go_back(engine: EngineUnderTest) -> None:
    """A run that continues from an older checkpoint publishes an older version."""
    newest = engine.version
    engine.version = 2
    engine.run(engine.update(engine.changed(3)))
    assert engine.generate([5], max_new_tokens=2).policy_version == (3, 3)
    engine.version = newest + 1
