"""Exactness: the engine's tokens and log-probs equal plain forward passes, whatever shares the batch."""

from __future__ import annotations

import asyncio
import copy
import random

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen3ForCausalLM

from roll.generation import GenerationRequest, SamplingParams
from roll.strategies.base import GenerationStrategy, WeightUpdate
from tests.strategies.generation.hf_infer.hf_infer_support import (
    SIZES,
    assert_greedy_and_exact,
    engine_for,
    full_log_probs,
    prompts,
    qwen,
    run_all,
)


@pytest.fixture(scope="module")
def model() -> Qwen3ForCausalLM:
    return qwen()


def test_is_a_generation_strategy(model):
    assert isinstance(engine_for(model), GenerationStrategy)


@pytest.mark.long
@pytest.mark.parametrize("layout", ["flat", "padded"])
@pytest.mark.parametrize("in_thread", [False, True])
def test_greedy_equals_hugging_face_generate_on_ragged_prompts(model, layout, in_thread):
    engine = engine_for(model, layout=layout, in_thread=in_thread)
    asked = prompts(20)
    lengths = [random.Random(i).randint(1, 20) for i in range(20)]
    requests = [
        GenerationRequest(str(i), p, SamplingParams(max_new_tokens=n, temperature=0.0))
        for i, (p, n) in enumerate(zip(asked, lengths, strict=True))
    ]
    for prompt, count, completion in zip(asked, lengths, run_all(engine, requests), strict=True):
        ids = torch.tensor([prompt])
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
        assert completion.token_ids == expected[0, len(prompt) :].tolist()
        assert completion.finish_reason == "length"
        assert_greedy_and_exact(model, prompt, completion)


@pytest.mark.long
@pytest.mark.parametrize("layout", ["flat", "padded"])
@pytest.mark.parametrize("max_slots", [12, 3])
def test_sessions_over_many_turns_are_exact_with_and_without_eviction(model, layout, max_slots):
    engine = engine_for(model, max_slots=max_slots, layout=layout, max_prefill_tokens=40)

    async def episode(number: int) -> int:
        rng = random.Random(number)
        history = prompts(1, 5, 40, seed=number)[0]
        for turn in range(5):
            if turn:
                history += prompts(1, 1, 20, seed=100 * number + turn)[0]
            completion = await engine.generate(
                GenerationRequest(
                    f"{number}/{turn}",
                    list(history),
                    SamplingParams(max_new_tokens=rng.randint(1, 6), temperature=0.0),
                    session=str(number),
                )
            )
            assert_greedy_and_exact(model, history, completion)
            assert completion.cached_tokens < len(history)
            history += completion.token_ids
        return len(history)

    async def main() -> int:
        return sum(await asyncio.gather(*(episode(number) for number in range(12))))

    added = asyncio.run(asyncio.wait_for(main(), 300))
    metrics = engine.metrics()
    if max_slots >= 12:
        assert metrics["evictions"] == 0
        assert added - 12 == metrics["forward_tokens"]  # all but the last token of each episode, each once
    else:
        assert metrics["evictions"] > 0


def test_a_prompt_that_diverges_from_its_session_is_computed_from_there(model):
    engine = engine_for(model)
    first = prompts(1, 60, 60)[0]
    second = first[:30] + prompts(1, 25, 25, seed=5)[0]
    assert first[30] != second[30]
    sampling = SamplingParams(max_new_tokens=5, temperature=0.0)
    run_all(engine, [GenerationRequest("a", first, sampling, session="s")])
    [completion] = run_all(engine, [GenerationRequest("b", second, sampling, session="s")])
    assert completion.cached_tokens == 30
    assert_greedy_and_exact(model, second, completion)
    [again] = run_all(engine, [GenerationRequest("c", second, sampling, session="s")])
    assert again.cached_tokens == len(second) - 1
    assert again.token_ids == completion.token_ids


@pytest.mark.parametrize("layout", ["flat", "padded"])
def test_prompts_that_start_alike_are_computed_once(model, layout):
    engine = engine_for(model, layout=layout, max_slots=20)
    shared, own = prompts(1, 100, 100)[0], prompts(12, 1, 9, seed=8)
    asked = [shared + tail for tail in own] + [shared[:40] + tail for tail in own[:3]] + [list(shared)] * 3
    requests = [GenerationRequest(str(i), p, SamplingParams(4, temperature=0.0)) for i, p in enumerate(asked)]
    for prompt, completion in zip(asked, run_all(engine, requests), strict=True):
        assert_greedy_and_exact(model, prompt, completion)
    # Whole blocks of 32 are shared: the first prompt, then at most 32 + 9 + 3 tokens for each of the others.
    assert engine.metrics()["forward_tokens"] < 110 + 18 * 44 < sum(len(p) for p in asked) / 1.5


def test_two_requests_of_one_session_at_once_do_not_share_a_slot(model):
    engine = engine_for(model)
    a, b = prompts(2, 20, 40)
    sampling = SamplingParams(max_new_tokens=8, temperature=0.0)
    done = run_all(engine, [GenerationRequest(str(i), p, sampling, session="s") for i, p in enumerate((a, b))])
    for prompt, completion in zip((a, b), done, strict=True):
        assert_greedy_and_exact(model, prompt, completion)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.6, 0, 1.0), (1.3, 5, 1.0), (0.9, 0, 0.7), (1.2, 20, 0.8)]
)
def test_sampled_log_probs_equal_those_of_a_full_forward(model, temperature, top_k, top_p):
    asked = prompts(10, seed=3)
    sampling = SamplingParams(12, temperature=temperature, top_k=top_k, top_p=top_p)
    requests = [GenerationRequest(str(i), p, sampling, seed=i) for i, p in enumerate(asked)]
    drawn = set()
    for prompt, completion in zip(asked, run_all(engine_for(model), requests), strict=True):
        log_probs = full_log_probs(model, prompt, completion, temperature)
        ranked, order = log_probs.sort(dim=-1, descending=True)
        kept = torch.ones_like(ranked, dtype=torch.bool)
        if top_k:
            kept[:, top_k:] = False
        inside = (ranked.exp() * kept) / (ranked.exp() * kept).sum(-1, keepdim=True)
        kept &= inside.cumsum(-1) - inside < top_p
        inside = inside * kept / (inside * kept).sum(-1, keepdim=True)
        rank = (order == torch.tensor(completion.token_ids)[:, None]).float().argmax(-1, keepdim=True)
        expected = inside.gather(1, rank).log().squeeze(1)
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-5, rtol=0)
        drawn.update(completion.token_ids)
    assert len(drawn) > 5


@pytest.mark.long
def test_tokens_do_not_depend_on_arrival_order_or_company(model):
    asked = prompts(12, seed=4)
    requests = [
        GenerationRequest(str(i), p, SamplingParams(max_new_tokens=10), seed=50 + i) for i, p in enumerate(asked)
    ]
    together = run_all(engine_for(model), requests)
    reversed_order = run_all(engine_for(model, max_slots=3, max_prefill_tokens=17), requests[::-1])[::-1]
    alone = [run_all(engine_for(model), [request])[0] for request in requests]
    for one, two, three in zip(together, reversed_order, alone, strict=True):
        assert one.token_ids == two.token_ids == three.token_ids
        assert one.logprobs == pytest.approx(two.logprobs, abs=1e-5)
    other = run_all(engine_for(model), [GenerationRequest("x", asked[0], SamplingParams(max_new_tokens=10), seed=7)])
    assert other[0].token_ids != together[0].token_ids


@pytest.mark.parametrize("layout", ["flat", "padded"])
def test_other_architectures_are_exact(layout):
    torch.manual_seed(1)
    llama = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    asked = prompts(6, seed=9)
    requests = [GenerationRequest(str(i), p, SamplingParams(8, temperature=0.0)) for i, p in enumerate(asked)]
    for prompt, completion in zip(asked, run_all(engine_for(llama, layout=layout), requests), strict=True):
        assert_greedy_and_exact(llama, prompt, completion)


def test_sliding_window_attention_is_exact_beyond_the_window():
    torch.manual_seed(2)
    mistral = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=9)).eval()
    asked = prompts(6, 20, 60, seed=9)
    requests = [GenerationRequest(str(i), p, SamplingParams(8, temperature=0.0)) for i, p in enumerate(asked)]
    for prompt, completion in zip(asked, run_all(engine_for(mistral), requests), strict=True):
        assert_greedy_and_exact(mistral, prompt, completion)


def test_the_callers_model_keeps_its_mode_attention_and_gradients():
    shared = qwen(3).train()
    before = shared.config._attn_implementation
    engine = engine_for(shared)
    run_all(engine, [GenerationRequest("a", [1, 2, 3], SamplingParams(4, temperature=0.0))])
    assert shared.training and shared.config._attn_implementation == before
    shared(torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss.backward()
    assert shared.model.embed_tokens.weight.grad is not None


def test_new_weights_reach_cached_sessions_with_long_prompts(model):
    mutable, newer = copy.deepcopy(model), qwen(11)
    engine = engine_for(mutable)
    prompt = prompts(1, 200, 200)[0]
    sampling = SamplingParams(max_new_tokens=6, temperature=0.0)

    async def main() -> None:
        old = await engine.generate(GenerationRequest("a", prompt, sampling, session="s"))
        assert_greedy_and_exact(model, prompt, old)
        await engine.update_weights(WeightUpdate(4, newer.named_parameters()))
        new = await engine.generate(GenerationRequest("b", prompt, sampling, session="s"))
        assert_greedy_and_exact(newer, prompt, new)
        assert old.policy_version == (0, 0) and new.policy_version == (4, 4)
        assert new.cached_tokens == 0 and new.token_ids != old.token_ids

    asyncio.run(main())


def test_weights_trained_in_place_need_no_copy_but_drop_the_prefix(model):
    trained, newer = copy.deepcopy(model), qwen(12)
    engine = engine_for(trained)
    prompt = prompts(1, 150, 150)[0]
    sampling = SamplingParams(max_new_tokens=6, temperature=0.0)

    async def main() -> None:
        await engine.generate(GenerationRequest("a", prompt, sampling, session="s"))
        with torch.no_grad():
            for parameter, value in zip(trained.parameters(), newer.parameters(), strict=True):
                parameter.copy_(value)
        await engine.update_weights(WeightUpdate(1, trained.named_parameters()))
        completion = await engine.generate(GenerationRequest("b", prompt, sampling, session="s"))
        assert_greedy_and_exact(newer, prompt, completion)

    asyncio.run(main())
