"""Quick products are products, models that are small keep PyTorch's, and large ones say what they said."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import linear
from transformers import LlamaConfig, LlamaForCausalLM

from roll.generation import GenerationRequest, SamplingParams
from roll.strategies.generation.hf_infer.cpu_products import few_rows_product, quicken, widened_product
from roll.strategies.generation.hf_infer.strategy import HfInferStrategy

SHAPES = st.tuples(st.integers(0, 20), st.integers(1, 70), st.integers(1, 40))


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@given(shape=SHAPES, has_bias=st.booleans(), stacked=st.booleans())
def test_products_are_those_of_doubles(shape: tuple[int, int, int], has_bias: bool, stacked: bool) -> None:
    rows, inputs, outputs = shape
    noise = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, inputs, generator=noise)
    weight = torch.randn(outputs, inputs, generator=noise) / inputs**0.5
    bias = torch.randn(outputs, generator=noise) if has_bias else None
    if stacked:
        x = x.unsqueeze(0)
    # Sums of one precision and of the other, and a rounding of the result to 8 bits.
    widened = partial(widened_product, block=torch.empty(100))
    for product, dtype, error in ((few_rows_product, torch.float32, 1e-5), (widened, torch.bfloat16, 2**-7)):
        given_x, given_weight = x.to(dtype), weight.to(dtype)
        given_bias = None if bias is None else bias.to(dtype)
        exact = linear(given_x.double(), given_weight.double(), None if given_bias is None else given_bias.double())
        found = product(given_x, given_weight, given_bias)
        assert found.dtype == dtype and found.shape == exact.shape and found.is_contiguous()
        # The bias is added to a sum that was rounded already where PyTorch does so.
        scale = 1 + exact.abs().max().item() if exact.numel() else 1.0
        assert torch.allclose(found.double(), exact, rtol=error, atol=error * scale)


def test_widened_weights_are_multiplied_block_by_block() -> None:
    x, weight, bias = torch.randn(9, 33), torch.randn(50, 33), torch.randn(50)
    x, weight, bias = (each.bfloat16() for each in (x, weight, bias))
    whole = linear(x.float(), weight.float(), bias.float()).bfloat16()
    for rows in (1, 7, 49, 50, 51):
        found = widened_product(x, weight, bias, block=torch.empty(rows * 33 + 5))
        # Another order of summing may round to the next number.
        assert torch.allclose(found.float(), whole.float(), rtol=2**-7)


def model(width: int, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 512}
    config = LlamaConfig(hidden_size=width, intermediate_size=2 * width, **sizes)
    return LlamaForCausalLM(config).to(dtype).eval()


def test_a_model_that_may_stay_in_the_cache_keeps_its_products() -> None:
    small = model(64)
    quicken(small)
    assert not any("forward" in vars(layer) for layer in small.modules())


def test_the_engine_changes_its_own_layers_and_not_those_of_the_trainer() -> None:
    large = model(1024)
    engine = HfInferStrategy(large, max_slots=2, max_length=16)
    view = engine._engine.runner._view
    assert all("forward" in vars(layer) for layer in view.modules() if type(layer) is nn.Linear)
    assert not any("forward" in vars(layer) for layer in large.modules())
    asyncio.run(engine.close())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tokens_and_log_probs_are_those_of_the_model_itself(threads: int, dtype: torch.dtype) -> None:
    large = model(1024, dtype)
    engine = HfInferStrategy(large, max_slots=16, max_length=32)
    sampling = SamplingParams(max_new_tokens=6, temperature=1.0)
    for rows in (1, 3, 9):
        prompts = [[(7 * row + 3 * place) % 512 for place in range(5)] for row in range(rows)]
        requests = [GenerationRequest(f"{rows}-{row}", prompt, sampling) for row, prompt in enumerate(prompts)]

        async def answered(requests: list[GenerationRequest] = requests) -> list[tuple[list[int], list[float]]]:
            found = await asyncio.gather(*(engine.generate(request) for request in requests))
            return [(list(each.token_ids), list(each.logprobs)) for each in found]

        for prompt, (tokens, logprobs) in zip(prompts, asyncio.run(answered()), strict=True):
            with torch.inference_mode():
                logits = large(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].float()
            expected = logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
            assert torch.allclose(torch.tensor(logprobs), expected, atol=1e-4 if dtype == torch.float32 else 0.1)
    asyncio.run(engine.close())


def test_where_the_processor_multiplies_bf16_pytorch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    large = model(1024, torch.bfloat16)
    quicken(large)
    assert not any("forward" in vars(layer) for layer in large.modules())
