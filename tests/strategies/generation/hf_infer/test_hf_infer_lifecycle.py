"""Requests come, go, freeze, fail and are cancelled without hurting their neighbours."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
import torch

from roll.generation import Activity, Completion, GenerationRequest, SamplingParams
from roll.strategies.base import WeightUpdate
from roll.strategies.generation.hf_infer.strategy import GenerationError, HfInferStrategy
from tests.strategies.generation.hf_infer.hf_infer_support import (
    assert_greedy_and_exact,
    engine_for,
    full_log_probs,
    prompts,
    qwen,
)

GREEDY = SamplingParams(max_new_tokens=100, temperature=0.0)


@pytest.fixture(scope="module")
def model():
    return qwen()


@pytest.fixture(params=[False, True], ids=["inline", "thread"])
def engine(request, model) -> HfInferStrategy:
    return engine_for(model, in_thread=request.param)


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 200))


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0)


def test_the_stop_token_ends_the_completion_and_stays_in_it(engine, model):
    prompt = prompts(1, 20, 20)[0]

    async def main() -> None:
        free = await engine.generate(GenerationRequest("a", prompt, SamplingParams(20, temperature=0.0)))
        stop = free.token_ids[3]
        cut = free.token_ids.index(stop) + 1
        sampling = SamplingParams(20, temperature=0.0, stop_token_ids=(stop, 96))
        stopped = await engine.generate(GenerationRequest("b", prompt, sampling))
        assert stopped.token_ids == free.token_ids[:cut] and len(stopped.logprobs) == cut
        assert (stopped.finish_reason, free.finish_reason) == ("stop", "length")

    run(main())


@pytest.mark.long
def test_a_short_request_does_not_wait_for_a_long_one(engine):
    async def main() -> None:
        long = asyncio.ensure_future(engine.generate(GenerationRequest("long", [1, 2], SamplingParams(200))))
        await until(lambda: engine.metrics()["generated_tokens"] > 3)
        await engine.generate(GenerationRequest("short", [3, 4], SamplingParams(2)))
        assert not long.done()
        assert len((await long).token_ids) == 200

    run(main())


def test_sampling_ends_where_the_slot_is_full(model):
    engine = engine_for(model, max_length=32)
    completion = run(engine.generate(GenerationRequest("a", [1] * 30, GREEDY)))
    assert len(completion.token_ids) == 2 and completion.finish_reason == "length"


def test_abort_returns_what_there_is_for_running_and_waiting_requests(model):
    engine = engine_for(model, max_slots=1)

    async def main() -> None:
        running = asyncio.ensure_future(engine.generate(GenerationRequest("running", [1, 2], GREEDY)))
        waiting = asyncio.ensure_future(engine.generate(GenerationRequest("waiting", [3, 4], GREEDY)))
        await until(lambda: engine.metrics()["generated_tokens"] >= 5)
        await engine.abort("running")
        await engine.abort("waiting")
        await engine.abort("unknown")
        first, second = await running, await waiting
        assert first.finish_reason == second.finish_reason == "abort"
        assert 5 <= len(first.token_ids) < 100 and len(first.logprobs) == len(first.token_ids)
        assert second.token_ids == []
        after = await engine.generate(GenerationRequest("after", [5, 6], SamplingParams(3, temperature=0.0)))
        assert_greedy_and_exact(model, [5, 6], after)

    run(main())


def test_cancelling_the_caller_frees_its_slot(model):
    engine = engine_for(model, max_slots=1)

    async def main() -> None:
        cancelled = asyncio.ensure_future(engine.generate(GenerationRequest("a", [1, 2], GREEDY)))
        next_one = asyncio.ensure_future(
            engine.generate(GenerationRequest("b", [7, 8], SamplingParams(4, temperature=0.0)))
        )
        await until(lambda: engine.metrics()["generated_tokens"] >= 2)
        cancelled.cancel()
        completion = await next_one
        assert_greedy_and_exact(model, [7, 8], completion)
        assert engine.metrics()["generated_tokens"] < 20
        with pytest.raises(asyncio.CancelledError):
            await cancelled

    run(main())


def test_pause_freezes_and_resume_continues_to_the_same_result(engine, model):
    prompt = prompts(1, 30, 30)[0]

    async def main() -> None:
        running = asyncio.ensure_future(engine.generate(GenerationRequest("a", prompt, GREEDY)))
        await until(lambda: engine.metrics()["generated_tokens"] >= 5)
        await engine.pause()
        steps = engine.metrics()["steps"]
        late = asyncio.ensure_future(engine.generate(GenerationRequest("late", [1], SamplingParams(2))))
        await asyncio.sleep(0.05)
        assert engine.metrics()["steps"] == steps and not running.done() and not late.done()
        await engine.resume()
        assert_greedy_and_exact(model, prompt, await running)
        assert len((await late).token_ids) == 2

    run(main())


@pytest.mark.long
def test_an_engine_that_slept_goes_on_to_the_same_result_and_held_no_cache_meanwhile(engine):
    prompt = prompts(1, 20, 20)[0]

    async def main() -> None:
        undisturbed = await engine.generate(GenerationRequest("a", prompt, GREEDY))
        task = asyncio.ensure_future(engine.generate(GenerationRequest("b", prompt, GREEDY)))
        before = engine.metrics()["generated_tokens"]
        await until(lambda: engine.metrics()["generated_tokens"] > before + 10)
        await engine.sleep()
        held = engine._engine.runner.cache.slots
        await engine.wake(["weights"])
        await asyncio.sleep(0.05)
        assert held == 0 and not task.done()
        await engine.wake(["kv_cache"])
        result = await task
        assert result.token_ids == undisturbed.token_ids
        assert result.logprobs == pytest.approx(undisturbed.logprobs, abs=1e-5)

    run(main())


@pytest.mark.long
@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("paused", [False, True])
def test_a_running_request_goes_on_under_new_weights(in_thread, paused):
    old, new = qwen(0), qwen(21)
    engine = engine_for(qwen(0), in_thread=in_thread)
    prompt = prompts(1, 120, 120)[0]

    async def main() -> tuple[Completion, int]:
        running = asyncio.ensure_future(engine.generate(GenerationRequest("a", prompt, GREEDY)))
        await until(lambda: engine.metrics()["generated_tokens"] >= 5)
        if paused:
            await engine.pause()
        await engine.update_weights(WeightUpdate(3, new.named_parameters()))
        switch = int(engine.metrics()["generated_tokens"])
        if paused:
            await asyncio.sleep(0.02)
            assert engine.metrics()["generated_tokens"] == switch
            await engine.resume()
        return await running, switch

    completion, switch = run(main())
    assert completion.policy_version == (0, 3) and len(completion.token_ids) == 100
    ids = torch.tensor(completion.token_ids)
    before, after = (full_log_probs(m, prompt, completion)[torch.arange(100), ids] for m in (old, new))
    got = torch.tensor(completion.logprobs)
    torch.testing.assert_close(got[:switch], before[:switch], atol=1e-5, rtol=0)
    torch.testing.assert_close(got[switch:], after[switch:], atol=1e-5, rtol=0)
    assert (before[switch:] - after[switch:]).abs().max() > 0.1


@pytest.mark.parametrize("problem", ["unknown", "missing", "shape", "tied"])
def test_a_bad_weight_update_is_an_error_and_blocks_until_a_good_one(problem):
    engine, new = engine_for(qwen(0)), qwen(5)
    named = dict(new.named_parameters())
    if problem == "unknown":
        named["model.extra"] = torch.zeros(1)
    elif problem == "missing":
        del named["model.norm.weight"]
    elif problem == "shape":
        named["model.norm.weight"] = torch.zeros(3)
    else:
        named["lm_head.weight"] = named["model.embed_tokens.weight"] + 1

    async def main() -> None:
        with pytest.raises((KeyError, ValueError), match="weight"):
            await engine.update_weights(WeightUpdate(1, named.items()))
        with pytest.raises(RuntimeError, match="no valid weights"):
            await engine.generate(GenerationRequest("a", [1], SamplingParams(2)))
        await engine.update_weights(WeightUpdate(2, new.named_parameters()))
        completion = await engine.generate(GenerationRequest("b", [1, 2, 3], SamplingParams(3, temperature=0.0)))
        assert_greedy_and_exact(new, [1, 2, 3], completion)

    run(main())


def test_released_sessions_are_forgotten(engine):
    async def main() -> None:
        prompt = prompts(1, 40, 40)[0]
        await engine.generate(GenerationRequest("a", prompt, SamplingParams(2), session="s"))
        assert (
            await engine.generate(GenerationRequest("b", prompt, SamplingParams(2), session="s"))
        ).cached_tokens == 39
        await engine.release("s")
        await engine.release("never seen")
        assert (
            await engine.generate(GenerationRequest("c", prompt, SamplingParams(2), session="s"))
        ).cached_tokens == 0

    run(main())


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (GenerationRequest("a", [], GREEDY), "empty"),
        (GenerationRequest("a", [1] * 256, GREEDY), "max_length"),
        (GenerationRequest("a", [1, 97], GREEDY), "vocabulary"),
        (GenerationRequest("a", [-1], GREEDY), "vocabulary"),
        (GenerationRequest("a", [1], SamplingParams(0)), "max_new_tokens"),
    ],
)
def test_requests_that_cannot_run_are_refused(engine, request_, message):
    with pytest.raises(ValueError, match=message):
        run(engine.generate(request_))


def test_a_second_request_with_a_running_id_is_refused(engine):
    async def main() -> None:
        first = asyncio.ensure_future(engine.generate(GenerationRequest("a", [1], SamplingParams(5))))
        await asyncio.sleep(0)
        with pytest.raises(ValueError, match="already running"):
            await engine.generate(GenerationRequest("a", [2], SamplingParams(5)))
        assert len((await first).token_ids) == 5

    run(main())


def test_a_failing_forward_reaches_every_waiting_request_and_the_engine_recovers(engine, model):
    original = engine._engine.runner.forward

    def broken(*args):
        raise OSError("the device fell off")

    async def main() -> None:
        engine._engine.runner.forward = broken
        results = await asyncio.gather(
            *(engine.generate(GenerationRequest(str(i), [i + 1], GREEDY)) for i in range(12)), return_exceptions=True
        )
        assert len(results) == 12
        for error in results:
            assert isinstance(error, GenerationError) and "fell off" in str(error)
            assert isinstance(error.__cause__, OSError)
        engine._engine.runner.forward = original
        completion = await engine.generate(GenerationRequest("x", [1, 2], SamplingParams(3, temperature=0.0)))
        assert_greedy_and_exact(model, [1, 2], completion)

    run(main())


def test_close_aborts_what_runs_and_refuses_what_comes(engine):
    async def main() -> None:
        running = asyncio.ensure_future(engine.generate(GenerationRequest("a", [1], GREEDY)))
        await until(lambda: engine.metrics()["generated_tokens"] >= 2)
        await engine.close()
        await engine.close()
        assert (await running).finish_reason == "abort"
        with pytest.raises(RuntimeError, match="closed"):
            await engine.generate(GenerationRequest("b", [1], GREEDY))

    run(main())


def test_one_engine_serves_several_event_loops_even_after_one_died_mid_request(engine, model):
    async def leave_early() -> None:
        asyncio.ensure_future(engine.generate(GenerationRequest("left", [1, 2], GREEDY)))
        await until(lambda: engine.metrics()["generated_tokens"] >= 2)

    run(leave_early())
    for number in range(2):
        completion = run(engine.generate(GenerationRequest("left", [number], SamplingParams(4, temperature=0.0))))
        assert_greedy_and_exact(model, [number], completion)


def test_smaller_priority_runs_earlier_when_slots_are_scarce(model):
    engine = engine_for(model, max_slots=1)
    finished = []

    async def ask(name: str, priority: int) -> None:
        await engine.generate(GenerationRequest(name, [1], SamplingParams(2), priority=priority))
        finished.append(name)

    async def main() -> None:
        await asyncio.gather(ask("late", 5), ask("middle", 1), ask("early", 0))

    run(main())
    assert finished == ["early", "middle", "late"]


def rollout(model, jitter: int) -> list[Completion]:
    """Twenty three-turn episodes whose env threads take times that ``jitter`` shuffles."""
    activity = Activity()
    engine = engine_for(model, max_slots=7, activity=activity, max_prefill_tokens=50)
    clock = random.Random(jitter)
    collected: dict[str, Completion] = {}

    async def episode(number: int) -> None:
        activity.enter_env()
        history = prompts(1, 3, 30, seed=number)[0]
        for turn in range(3):
            await asyncio.to_thread(time.sleep, clock.random() * 0.004)
            activity.leave_env()
            name = f"{number}/{turn}"
            sampling = SamplingParams(random.Random(name).randint(1, 6))
            request = GenerationRequest(name, list(history), sampling, seed=10 * number + turn, session=str(number))
            collected[name] = await asyncio.wait_for(engine.generate(request), 100)
            activity.enter_env()
            history += [*collected[name].token_ids, 1, 2, 3]
        activity.leave_env()

    async def main() -> None:
        await asyncio.gather(*(episode(number) for number in range(20)))

    run(main())
    return [collected[name] for name in sorted(collected)]


@pytest.mark.long
def test_with_activity_two_runs_are_bit_identical_whatever_the_threads_do(model):
    first, second = rollout(model, 1), rollout(model, 2)
    assert len(first) == 60
    assert [(c.token_ids, c.logprobs, c.cached_tokens) for c in first] == [
        (c.token_ids, c.logprobs, c.cached_tokens) for c in second
    ]


def test_leaving_without_entering_is_an_error():
    with pytest.raises(RuntimeError, match="matching enter_env"):
        Activity().leave_env()
