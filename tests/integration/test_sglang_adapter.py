"""The SGLang adapter against a fake with the real package's signatures: what the contract of engines does not say."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
import torch
from sglang_double import RECORDED, FakeEngine, install

from roll.config.errors import ConfigError
from roll.generation import Completion, GenerationRequest, SamplingParams
from roll.models.toy import WEIGHTS_DIRECTORY
from roll.strategies.base import GenerationStrategy, WeightUpdate
from roll.strategies.generation.sglang.errors import GenerationError, SglangNotInstalledError, WeightLoadError
from roll.strategies.generation.sglang.options import OWNED, check_options, engine_arguments
from roll.strategies.generation.sglang.strategy import SglangStrategy


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


class Case:
    """A strategy on the fake, and its loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, **options: Any) -> None:
        self.loop = loop
        self.strategy = SglangStrategy(WEIGHTS_DIRECTORY, max_slots=8, max_length=2000, dtype="fp32", **options)
        assert FakeEngine.last is not None
        self.engine = FakeEngine.last
        self.manager = self.engine.tokenizer_manager

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, 100))

    def generate(self, name: str, prompt: list[int], **sampling: Any) -> Coroutine[Any, Any, Completion]:
        return self.strategy.generate(GenerationRequest(name, prompt, SamplingParams(**sampling), seed=3, priority=2))

    async def sampled(self, requests: int = 1) -> None:
        """Wait until so many requests have a token."""
        while sum(bool(one.tokens) for one in self.manager.running.values()) < requests:
            await asyncio.sleep(0.001)


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch, loop: asyncio.AbstractEventLoop) -> Case:
    install(monkeypatch)
    return Case(loop)


def update(number: int, version: int, tensors: int = 3) -> WeightUpdate:
    return WeightUpdate(version, [(f"layer.{k}", torch.full((4,), float(number))) for k in range(tensors)])


def test_a_completion_has_ids_log_probs_and_version(case: Case) -> None:
    assert isinstance(case.strategy, GenerationStrategy)
    got = case.run(case.generate("a", [5, 6], max_new_tokens=3, temperature=0.7, stop_token_ids=(9,)))
    assert got == Completion([7, 8, 9], [-1.0, -1.0, -1.0], "stop", (0, 0), 0)
    assert case.run(case.generate("a", [5, 6], max_new_tokens=2)).cached_tokens == 2
    sent = case.engine.sampling[0]
    assert (sent["temperature"], sent["ignore_eos"], sent["no_stop_trim"]) == (0.7, False, True)
    assert sent["priority"] == 2
    assert -(2**63) <= sent["sampling_seed"] < 2**63
    metrics = case.strategy.metrics()
    assert (metrics["generated_tokens"], metrics["prompt_tokens"], metrics["cached_tokens"]) == (5, 4, 2)
    assert metrics["prefix_cache_hit_rate"] == 0.5


def test_seeds_of_any_size_fit_what_the_engine_takes(case: Case) -> None:
    for seed in (0, 2**64 - 1, 2**63, -5, 2**200):
        request = GenerationRequest(f"s{seed}", [1], SamplingParams(max_new_tokens=1), seed=seed)
        case.run(case.strategy.generate(request))
    seeds = [sent["sampling_seed"] for sent in case.engine.sampling]
    assert all(-(2**63) <= seed < 2**63 for seed in seeds)
    assert len(set(seeds)) == 5


def test_the_engine_gets_the_sizes_of_the_run(case: Case) -> None:
    arguments = case.engine.arguments
    assert arguments["model_path"] == str(WEIGHTS_DIRECTORY)
    assert arguments["max_running_requests"] == 8
    assert arguments["skip_tokenizer_init"]
    assert arguments["dtype"] == "float32"


@pytest.mark.parametrize("sampling", [{"top_k": 5}, {"top_p": 0.9}])
def test_sampling_without_exact_log_probs_is_refused(case: Case, sampling: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="before top-k, top-p and min-p"):
        case.run(case.generate("a", [1], **sampling))
    # Greedy, they mean nothing.
    assert case.run(case.generate("a", [1], temperature=0.0, max_new_tokens=1, **sampling)).token_ids == [2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_repetition_penalty_is_refused_with_the_reason(case: Case, temperature: float) -> None:
    with pytest.raises(ValueError, match="repetition penalty spares the prompt"):
        case.run(case.generate("a", [1], temperature=temperature, repetition_penalty=1.5))


def test_an_environment_variable_that_falsifies_log_probs_is_refused(
    monkeypatch: pytest.MonkeyPatch, loop: asyncio.AbstractEventLoop
) -> None:
    install(monkeypatch)
    monkeypatch.setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", "1")
    with pytest.raises(ValueError, match="unset it"):
        Case(loop)


def test_an_update_runs_inside_the_bracket_and_drops_the_cache(
    monkeypatch: pytest.MonkeyPatch, loop: asyncio.AbstractEventLoop
) -> None:
    install(monkeypatch)
    case = Case(loop, bucket_bytes=32)
    case.run(case.generate("a", [1], max_new_tokens=1))
    case.manager.calls.clear()
    case.run(case.strategy.update_weights(update(2, 7)))
    assert case.manager.calls == [
        "pause_generation",
        "begin_weight_update",
        "update_weights_from_tensor",
        "update_weights_from_tensor",
        "end_weight_update",
        "flush_cache",
        "continue_generation",
    ]
    got = case.run(case.generate("a", [1], max_new_tokens=2))
    assert got == Completion([3, 5], [-2.0, -2.0], "length", (7, 7), 0)


def test_a_request_that_spans_an_update_says_so(case: Case) -> None:
    async def scenario() -> Completion:
        task = asyncio.create_task(case.generate("a", [1], max_new_tokens=60))
        await case.sampled()
        await case.strategy.update_weights(update(2, 1))
        return await task

    got = case.run(scenario())
    assert got.policy_version == (0, 1)
    assert set(got.logprobs) == {-1.0, -2.0}


@pytest.mark.parametrize("where", ["load", "flush"])
def test_an_update_that_the_engine_refuses_silently_is_an_error(case: Case, where: str) -> None:
    async def scenario() -> None:
        task = asyncio.create_task(case.generate("a", [1], max_new_tokens=500))
        await case.sampled()
        setattr(case.manager, f"refuse_{where}", True)
        with pytest.raises(WeightLoadError, match="shapes differ" if where == "load" else "flush_cache"):
            await case.strategy.update_weights(update(2, 1))
        assert not case.manager.in_bracket
        with pytest.raises(GenerationError, match="failed half-way"):
            await task
        with pytest.raises(RuntimeError, match="no valid weights"):
            await case.generate("b", [1])
        setattr(case.manager, f"refuse_{where}", False)
        await case.strategy.update_weights(update(3, 2))
        assert (await case.generate("c", [1], max_new_tokens=1)).token_ids == [4]

    case.run(scenario())


def test_loading_without_the_bracket_is_told(case: Case) -> None:
    with pytest.raises(WeightLoadError, match="between begin_weight_update"):
        case.run(case.strategy._engine.load_tensors([("w", torch.ones(1))], "1"))


def test_tensors_are_copied_before_the_next_is_asked_for(case: Case) -> None:
    def gathered() -> Iterator[tuple[str, torch.Tensor]]:
        memory = torch.empty(4)
        for number in (2.0, 9.0):
            yield f"layer.{number}", memory.fill_(number)
        memory.fill_(77.0)

    case.run(case.strategy.update_weights(WeightUpdate(1, gathered())))
    assert case.manager.number == 9


def test_abort_ends_one_request_and_none_whose_id_begins_alike(case: Case) -> None:
    async def scenario() -> tuple[Completion, Completion]:
        one = asyncio.create_task(case.generate("r1", [1], max_new_tokens=80))
        ten = asyncio.create_task(case.generate("r10", [1], max_new_tokens=80))
        await case.sampled(2)
        await case.strategy.abort("r1")
        await case.strategy.abort("unknown")
        return await one, await ten

    one, ten = case.run(scenario())
    assert one.finish_reason == "abort"
    assert 0 < len(one.token_ids) < 80
    assert len(ten.token_ids) == 80


def test_cancelling_the_caller_ends_the_request(case: Case) -> None:
    async def scenario() -> None:
        task = asyncio.create_task(case.generate("a", [1], max_new_tokens=500))
        await case.sampled()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    case.run(scenario())
    assert "abort_request" in case.manager.calls
    assert case.strategy.metrics()["active"] == 0


def test_pause_and_resume(case: Case) -> None:
    async def scenario() -> Completion:
        task = asyncio.create_task(case.generate("a", [1], max_new_tokens=60))
        await case.sampled()
        await case.strategy.pause()
        newcomer = asyncio.create_task(case.generate("b", [1], max_new_tokens=1))
        unwanted = asyncio.create_task(case.generate("c", [1], max_new_tokens=1))
        await asyncio.sleep(0.05)
        assert not task.done() and not newcomer.done()
        await case.strategy.abort("c")
        assert (await unwanted).finish_reason == "abort"
        await case.strategy.resume()
        await newcomer
        return await task

    got = case.run(scenario())
    assert got.finish_reason == "length" and len(got.token_ids) == 60


def test_sleep_refuses_requests_until_new_weights_and_wake(case: Case) -> None:
    async def scenario() -> None:
        await case.strategy.sleep()
        with pytest.raises(RuntimeError, match="sleep gave"):
            await case.generate("a", [1])
        await case.strategy.wake(["weights"])
        await case.strategy.update_weights(update(4, 1))
        waiting = asyncio.create_task(case.generate("b", [1], max_new_tokens=1))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        await case.strategy.wake(["kv_cache"])
        assert (await waiting).token_ids == [5]

    case.run(scenario())


@pytest.mark.parametrize(
    ("prompt", "message"), [([], "empty prompt"), ([1] * 2000, "leaves no room in max_length=2000")]
)
def test_a_prompt_that_does_not_fit_is_refused(case: Case, prompt: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        case.run(case.generate("a", prompt))


def test_close_ends_the_engine(case: Case) -> None:
    case.run(case.strategy.close())
    case.run(case.strategy.close())
    with pytest.raises(RuntimeError, match="closed"):
        case.run(case.generate("a", [1]))


def test_keys_are_checked_against_the_engines_own_arguments() -> None:
    known = RECORDED["arguments"]
    options = {"tp_size": 2, "mem_fraction_static": 0.7}
    assert check_options(options, names=known) == options
    with pytest.raises(ConfigError) as caught:
        check_options({"mem_fraction_statik": 0.7, "dp_size": 2, "context_length": 10}, names=known, max_length=100)
    text = str(caught.value)
    assert "did you mean 'mem_fraction_static'" in text
    assert "give actor_infer more workers" in text
    assert "up to 100 tokens" in text
    assert "actor_infer.strategy_args.strategy_config.dp_size" in text


def test_every_argument_that_roll_sets_is_one_of_the_engines() -> None:
    arguments = engine_arguments("m", max_slots=1, max_length=2, dtype="bf16", seed=0, version=0, options={})
    assert set(arguments) | set(OWNED) <= set(RECORDED["arguments"])


def test_a_missing_package_is_told_with_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang", None)
    monkeypatch.delitem(sys.modules, "roll.strategies.generation.sglang.adapter", raising=False)
    with pytest.raises(SglangNotInstalledError, match=r"pip install 'roll-rl\[sglang\]'"):
        SglangStrategy("model")


def test_the_fake_refuses_what_the_real_signatures_refuse(case: Case) -> None:
    with pytest.raises(TypeError):
        case.manager.abort_request(request_id="a")
    with pytest.raises(ValueError, match="must be one of"):
        sys.modules["sglang.srt.managers.io_struct"].PauseGenerationReqInput(mode="keep")
    with pytest.raises(TypeError, match="no field"):
        sys.modules["sglang.srt.managers.io_struct"].EndWeightUpdateReqInput(selector="all")
