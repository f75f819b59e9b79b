"""Quick products are products, models that are small keep PyTorch's, and large ones say what they said."""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import linear
from transformers import LlamaConfig, LlamaForCausalLM

from roll.config.errors import ConfigError
from roll.generation import GenerationRequest, SamplingParams
from roll.strategies.base import WeightUpdate
from roll.strategies.generation.hf_infer.build import engine as build_engine
from roll.strategies.generation.hf_infer.cpu_products import (
    CannotPackError,
    PackedWeights,
    SharedProduct,
    few_rows_product,
    quicken,
    widened_product,
)
from roll.strategies.generation.hf_infer.strategy import HfInferStrategy
from roll.strategies.jobs import EngineJob
from tests.rings import exhaustive_but

HAS_ONEDNN = torch.backends.mkldnn.is_available()
needs_onednn = pytest.mark.skipif(not HAS_ONEDNN, reason="this build of PyTorch has no oneDNN")


def layer(weight: torch.Tensor, bias: torch.Tensor | None = None) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
    made.weight = nn.Parameter(weight)
    made.bias = None if bias is None else nn.Parameter(bias)
    return made


def packed_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    with torch.inference_mode():
        return SharedProduct(PackedWeights([layer(weight, bias)], torch.float32)).part(0, x)


SHAPES = st.tuples(st.integers(0, 20), st.integers(1, 70), st.integers(1, 40))


@pytest.fixture(params=exhaustive_but([1, 2], 2))
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
    ways = (
        (few_rows_product, torch.float32, 1e-5),
        (widened, torch.bfloat16, 2**-7),
        *([(packed_product, torch.float32, 1e-5), (packed_product, torch.bfloat16, 2**-7)] * HAS_ONEDNN),
    )
    for product, dtype, error in ways:
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
    return copy.deepcopy(made(width, dtype))


@functools.cache
def made(width: int, dtype: torch.dtype) -> LlamaForCausalLM:
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


@pytest.mark.long
@pytest.mark.parametrize("pack", [False, pytest.param(True, marks=needs_onednn)], ids=["as they are", "packed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tokens_and_log_probs_are_those_of_the_model_itself(threads: int, dtype: torch.dtype, pack: bool) -> None:
    large = model(1024, dtype)
    engine = HfInferStrategy(large, max_slots=16, max_length=32, pack_weights=pack)
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


def copies(engine: HfInferStrategy) -> int:
    packed = engine._engine.runner._packed
    assert packed
    return sum(each._copy is not None for each in packed)


@needs_onednn
def test_packed_weights_are_those_that_were_loaded_last() -> None:
    """Those of a trainer that changes its own model in place, as a run in one process has it."""
    large = model(1024)
    engine = HfInferStrategy(large, max_slots=16, max_length=32, pack_weights=True)
    prompts = [[(7 * row + 3 * place) % 512 for place in range(5)] for row in range(9)]
    sampling = SamplingParams(max_new_tokens=2)

    async def logprobs(version: int) -> list[float]:
        asked = [GenerationRequest(f"{version}-{row}", prompt, sampling) for row, prompt in enumerate(prompts)]
        answers = await asyncio.gather(*(engine.generate(request) for request in asked))
        with torch.inference_mode():
            ids = torch.tensor([[*prompt, *each.token_ids] for prompt, each in zip(prompts, answers, strict=True)])
            expected = large(ids).logits[:, 4:-1].log_softmax(-1).gather(2, ids[:, 5:, None])[..., 0]
        assert torch.allclose(torch.tensor([each.logprobs for each in answers]), expected, atol=1e-4)
        return answers[0].logprobs

    async def run() -> None:
        before = await logprobs(0)
        assert copies(engine) == 9
        with torch.no_grad():
            for parameter in large.parameters():
                parameter.data.add_(0.03 * torch.randn_like(parameter))  # `_version` does not tell
        await engine.update_weights(WeightUpdate(1, iter(large.named_parameters())))
        assert copies(engine) == 0
        assert await logprobs(1) != before
        await engine.sleep()
        assert copies(engine) == 0
        await engine.wake()
        await engine.close()

    asyncio.run(run())


@needs_onednn
@torch.inference_mode()
def test_the_few_rows_of_a_step_need_no_copy() -> None:
    weights = PackedWeights([layer(torch.randn(3, 8))], torch.float32)
    product = SharedProduct(weights)
    product.part(0, torch.randn(4, 8))
    assert weights._copy is None
    product.part(0, torch.randn(5, 8))
    assert weights._copy is not None


@needs_onednn
@pytest.mark.skipif(
    not (HAS_ONEDNN and torch.ops.mkldnn._is_mkldnn_bf16_supported()), reason="this processor multiplies no bf16"
)
@torch.inference_mode()
def test_where_the_processor_multiplies_bf16_one_row_needs_the_copy() -> None:
    x, weight = torch.randn(1, 64).bfloat16(), torch.randn(48, 64).bfloat16()
    weights = PackedWeights([layer(weight)], torch.bfloat16)
    found = SharedProduct(weights).part(0, x)
    assert weights._copy is not None
    assert torch.allclose(found.float(), linear(x.float(), weight.float()), rtol=2**-7, atol=2**-7)


@needs_onednn
@pytest.mark.parametrize("has_bias", [False, True])
@torch.inference_mode()
def test_layers_with_one_input_share_a_product_in_whatever_order_they_are_called(has_bias: bool) -> None:
    layers = [nn.Linear(24, outputs, bias=has_bias) for outputs in (16, 8, 40)]
    weights = PackedWeights(layers, torch.float32)
    product = SharedProduct(weights)
    for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2), (0, 1, 2)):
        x = torch.randn(2, 5, 24)
        for place in order:
            assert torch.allclose(product.part(place, x), layers[place](x), atol=1e-5)
    product.part(0, torch.randn(7, 24))
    other = torch.randn(7, 24)
    assert torch.allclose(product.part(1, other), layers[1](other), atol=1e-5)


@needs_onednn
def test_only_layers_of_one_kind_share_a_product() -> None:
    alike, unlike = model(1024), model(1024)
    for block in unlike.model.layers:
        block.self_attn.k_proj.bias = nn.Parameter(torch.zeros(block.self_attn.k_proj.out_features))
        block.mlp.up_proj = nn.Sequential(block.mlp.up_proj)
    # Of two blocks: q with k and v, o, gate with up, down; and the head.
    assert sorted(len(each.layers) for each in quicken(alike, pack=True)) == [1] * 5 + [2] * 2 + [3] * 2
    assert sorted(len(each.layers) for each in quicken(unlike, pack=True)) == [1] * 15


@needs_onednn
def test_what_cannot_be_packed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotPackError, match="fp32 or bf16"):
        HfInferStrategy(model(64).half(), pack_weights=True)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    job = EngineJob(folder=str, load=lambda: model(64), strategy_config={"pack_weights": True}, path="its.options")
    with pytest.raises(ConfigError, match=r"its.options.pack_weights = True\n.*no oneDNN"):
        build_engine(job)
