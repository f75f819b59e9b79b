"""A compiled model says what it says without: attention and the cache are outside of the graph, and see every step."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

from roll.config.errors import ConfigError
from roll.generation import GenerationRequest, SamplingParams
from roll.strategies.base import WeightUpdate
from roll.strategies.compilers import missing_compiler
from roll.strategies.generation.hf_infer import compiling, cpu_products, model_runner
from roll.strategies.generation.hf_infer.build import engine as build_engine
from roll.strategies.generation.hf_infer.strategy import HfInferStrategy
from roll.strategies.jobs import EngineJob
from tests.rings import exhaustive_but
from tests.strategies.generation.hf_infer.hf_infer_support import (
    SIZES,
    assert_greedy_and_exact,
    engine_for,
    prompts,
    qwen,
    run_all,
)

CANNOT = missing_compiler(torch.device("cpu"))


@pytest.fixture(autouse=True)
def forgets_graphs() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> CompileCounterWithBackend:
    """Graphs that are interpreted, and counted: no C++ compiler, and what the graph contains is the same."""
    backend = CompileCounterWithBackend("aot_eager")
    compiled = torch.nn.Module.compile

    def compile_so(module: torch.nn.Module, **options: Any) -> None:
        compiled(module, **options, backend=backend)

    monkeypatch.setattr(torch.nn.Module, "compile", compile_so)
    monkeypatch.setattr(model_runner, "missing_compiler", lambda device: None)
    return backend


def greedy(rows: list[list[int]], session: bool = False) -> list[GenerationRequest]:
    sampling = SamplingParams(max_new_tokens=24, temperature=0.0)
    return [
        GenerationRequest(f"{i}-{len(row)}", row, sampling, session=f"s{i}" if session else None)
        for i, row in enumerate(rows)
    ]


@pytest.mark.long
@pytest.mark.skipif(CANNOT is not None, reason=str(CANNOT))
def test_real_kernels_say_what_the_model_says() -> None:
    model, asked = qwen(), greedy(prompts(5))
    for prompt, found in zip(prompts(5), run_all(engine_for(model, torch_compile=True), asked), strict=True):
        assert_greedy_and_exact(model, prompt, found)


def llama(**options: Any) -> LlamaForCausalLM:
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(**SIZES, **options)).eval()


def gemma() -> Gemma3ForCausalLM:
    torch.manual_seed(2)
    kinds = ["sliding_attention", "full_attention"]
    return Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, sliding_window=9, layer_types=kinds)).eval()


@pytest.mark.long
@pytest.mark.parametrize("make", exhaustive_but([qwen, llama, gemma], qwen))
def test_steps_of_any_size_are_one_graph_and_exact(make, interpreted) -> None:
    """Of one token and of more than one; whatever the cache grows to, and however long a prompt is."""
    model = make()
    engine = engine_for(model, torch_compile=True)
    for rows in (prompts(1), prompts(9, seed=1), prompts(3, 100, 200, seed=2), prompts(1, seed=3)):
        for prompt, found in zip(rows, run_all(engine, greedy(rows)), strict=True):
            assert_greedy_and_exact(model, prompt, found)
    assert interpreted.frame_count <= 3


@pytest.mark.exhaustive
def test_sessions_new_weights_and_sleep(interpreted) -> None:
    model = qwen()
    engine = engine_for(model, torch_compile=True)

    async def run() -> None:
        rows = prompts(4)
        for version in range(3):
            answers = await asyncio.gather(*(engine.generate(each) for each in greedy(rows, session=True)))
            for prompt, answer in zip(rows, answers, strict=True):
                assert_greedy_and_exact(model, prompt, answer)
            rows = [[*row, *answer.token_ids, 5] for row, answer in zip(rows, answers, strict=True)]
            if version == 0:
                continue
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.05 * torch.randn_like(parameter))
            await engine.update_weights(WeightUpdate(version, iter(model.named_parameters())))
            await engine.sleep()
            await engine.wake()
        await engine.close()

    asyncio.run(run())
    assert interpreted.frame_count <= 3


@pytest.mark.exhaustive
def test_two_models_of_one_class_keep_to_themselves(interpreted) -> None:
    """Code that is compiled once belongs to the class; caches and products belong to an engine."""
    models = [qwen(3), qwen(4, rms_norm_eps=0.3)]
    engines = [engine_for(model, torch_compile=True) for model in models]
    for _ in range(2):
        for model, engine in zip(models, engines, strict=True):
            for prompt, found in zip(prompts(3), run_all(engine, greedy(prompts(3))), strict=True):
                assert_greedy_and_exact(model, prompt, found)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("pack", "dtype"), [(False, torch.float32), (True, torch.float32), (True, torch.bfloat16)])
def test_products_of_large_models_stay_what_they_are(pack, dtype, interpreted, monkeypatch) -> None:
    if pack and not torch.backends.mkldnn.is_available():
        pytest.skip("this build of PyTorch has no oneDNN")
    monkeypatch.setattr(cpu_products, "_LEAST_BYTES", 0)
    model = qwen().to(dtype)
    plain = engine_for(model, pack_weights=pack)
    compiled = engine_for(model, pack_weights=pack, torch_compile=True)
    sampling = SamplingParams(max_new_tokens=1, temperature=0.0)
    for version in range(3):
        for count in (1, 3, 8):
            rows = prompts(count, 1, 4)
            asked = [GenerationRequest(f"{version}-{count}-{i}", row, sampling) for i, row in enumerate(rows)]
            for ours, theirs in zip(run_all(compiled, asked), run_all(plain, asked), strict=True):
                assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-5 if dtype == torch.float32 else 0.1)
        if pack:
            assert any(each._copy is not None for each in compiled._engine.runner._packed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        for engine in (plain, compiled):
            asyncio.run(engine.update_weights(WeightUpdate(version + 1, iter(model.named_parameters()))))
    # Of one row, of a few, and of more: new weights are no reason to compile anew.
    assert interpreted.frame_count <= 3


@pytest.mark.long
@pytest.mark.skipif(CANNOT is not None, reason=str(CANNOT))
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of PyTorch has no oneDNN")
def test_graphs_call_packed_products_without_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_products, "_LEAST_BYTES", 0)
    model, rows = qwen(), prompts(6, 5, 9)
    engine = engine_for(model, pack_weights=True, torch_compile=True)
    run_all(engine, greedy(rows))
    with torch.profiler.profile() as seen:
        answers = run_all(engine, greedy(rows))
    for prompt, found in zip(rows, answers, strict=True):
        assert_greedy_and_exact(model, prompt, found)
    calls = {event.key: event.count for event in seen.key_averages()}
    assert calls["mkldnn::_linear_pointwise"] > 24 and "roll_hf_infer::packed_product" not in calls


def test_numbers_of_engines_that_are_gone_are_free() -> None:
    before = len(compiling._owners)
    engine = engine_for(qwen())
    assert len(compiling._owners) > before
    del engine
    gc.collect()
    assert len(compiling._owners) <= before


@pytest.mark.skipif(CANNOT is not None, reason=str(CANNOT))
def test_what_cannot_be_compiled_says_so() -> None:
    with pytest.raises(compiling.CannotCompileError, match="padded rows"):
        HfInferStrategy(qwen(), layout="padded", torch_compile=True)


def test_a_missing_compiler_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    job = EngineJob(folder=str, load=qwen, strategy_config={"torch_compile": True}, path="its.options")
    with pytest.raises(ConfigError, match=r"its.options.torch_compile = True\n.*'no-such-compiler' is not on PATH"):
        build_engine(job)
