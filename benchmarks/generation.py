"""Tokens per second of the ``hf_infer`` engine against one plain ``model.generate`` over the same prompts.

    OMP_NUM_THREADS=2 python benchmarks/generation.py [uniform] [mixed] [episodes] [--episodes 512]

``uniform``: 256 prompts, 64 new tokens each. ``mixed``: 256 prompts, log-normal 8 to 256 new tokens (``generate`` has
to run to the longest of its batch). ``episodes``: 10-turn episodes, each turn adding 45 to 60 prompt tokens and
sampling 4 to 6, with sessions and without; groups of 8 share their first prompt.
The model has the size of the toy policy, with random weights, in float32.
"""

from __future__ import annotations

import argparse
import asyncio
import time

import numpy as np
import torch
from ratios import leave
from transformers import Qwen3Config, Qwen3ForCausalLM

from roll.generation import GenerationRequest, SamplingParams
from roll.strategies.generation.hf_infer.strategy import HfInferStrategy

VOCABULARY = 512
FIRST_PROMPT = 110
TURNS = 10
GROUP = 8


def toy_model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=384,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).eval()


def ours(model: Qwen3ForCausalLM, prompts: list[list[int]], new_tokens: list[int]) -> float:
    """Seconds to complete all prompts with a fresh engine."""
    engine = HfInferStrategy(model, max_slots=512, max_length=1024)

    async def run() -> None:
        requests = [
            GenerationRequest(f"r{i}", prompt, SamplingParams(max_new_tokens=count), seed=i)
            for i, (prompt, count) in enumerate(zip(prompts, new_tokens, strict=True))
        ]
        completions = await asyncio.gather(*(engine.generate(request) for request in requests))
        assert [len(c.token_ids) for c in completions] == new_tokens

    started = time.perf_counter()
    asyncio.run(run())
    return time.perf_counter() - started


def plain(model: Qwen3ForCausalLM, prompts: list[list[int]], new_tokens: list[int]) -> float:
    """Seconds of one left-padded ``generate`` that runs to the longest completion."""
    width = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    started = time.perf_counter()
    with torch.inference_mode():
        model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=max(new_tokens),
            min_new_tokens=max(new_tokens),
            do_sample=True,
            top_k=0,
            pad_token_id=0,
        )
    return time.perf_counter() - started


def compare(name: str, model: Qwen3ForCausalLM, prompts: list[list[int]], counts: list[int], wanted: float) -> bool:
    """Print one row: alternate the two twice and take each one's better time."""
    seconds = [(ours(model, prompts, counts), plain(model, prompts, counts)) for _ in range(2)]
    ours_best, plain_best = (min(column) for column in zip(*seconds, strict=True))
    total = sum(counts)
    ratio = plain_best / ours_best
    leave(f"generation: {name}", [theirs / own for own, theirs in seconds])
    verdict = "PASS" if ratio >= wanted else "FAIL"
    print(
        f"{name:<10} hf_infer {total / ours_best:8.0f} tok/s   generate {total / plain_best:8.0f} tok/s   "
        f"ratio {ratio:5.2f} (wanted {wanted:.1f})  {verdict}"
    )
    return ratio >= wanted


def episodes(model: Qwen3ForCausalLM, count: int, use_sessions: bool) -> tuple[float, int, dict[str, float]]:
    """Run ``count`` episodes; returns seconds, tokens in all final histories, and the engine's metrics."""
    engine = HfInferStrategy(model, max_slots=512, max_length=1024)
    histories = [0] * count

    async def episode(number: int) -> None:
        shared = np.random.default_rng(number // GROUP)
        history = shared.integers(0, VOCABULARY, FIRST_PROMPT + int(shared.integers(0, 20))).tolist()
        rng = np.random.default_rng([number, 1])
        for turn in range(TURNS):
            if turn:
                history += rng.integers(0, VOCABULARY, int(rng.integers(45, 61))).tolist()
            completion = await engine.generate(
                GenerationRequest(
                    f"{number}/{turn}",
                    list(history),
                    SamplingParams(max_new_tokens=int(rng.integers(4, 7))),
                    seed=number * TURNS + turn,
                    session=str(number) if use_sessions else None,
                )
            )
            history += completion.token_ids
        histories[number] = len(history)

    async def run() -> None:
        await asyncio.gather(*(episode(number) for number in range(count)))

    started = time.perf_counter()
    asyncio.run(run())
    return time.perf_counter() - started, sum(histories), engine.metrics()


def compare_episodes(model: Qwen3ForCausalLM, count: int) -> bool:
    seconds, tokens, metrics = episodes(model, count, use_sessions=True)
    print(
        f"episodes   {count} x {TURNS} turns with sessions: {seconds:.2f} s "
        f"(forward {metrics['forward_seconds']:.2f} s, "
        f"sampling {metrics['sampling_seconds']:.2f} s, {metrics['steps']:.0f} steps, "
        f"{metrics['generated_tokens'] / seconds:.0f} sampled tok/s, {tokens / seconds:.0f} tok/s in all)"
    )
    ratio = metrics["forward_tokens"] / tokens
    linear = ratio <= 1.05
    print(f"           tokens run / tokens added: {ratio:.3f} (wanted <= 1.05)  {'PASS' if linear else 'FAIL'}")
    without, _, again = episodes(model, count, use_sessions=False)
    print(
        f"           without sessions: {without:.2f} s, {again['prefill_tokens'] / metrics['prefill_tokens']:.1f}x the "
        f"prompt tokens, {without / seconds:.1f}x the time"
    )
    return linear


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["uniform", "mixed", "episodes"])
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--prompts", type=int, default=256, help="prompts of the uniform and the mixed part")
    arguments = parser.parse_args()
    model = toy_model()
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, VOCABULARY, int(rng.integers(32, 97))).tolist() for _ in range(arguments.prompts)]
    lengths = np.clip(np.exp(rng.normal(np.log(45), 0.8, arguments.prompts)), 8, 256).astype(int).tolist()
    passed = True
    if "uniform" in arguments.parts:
        passed &= compare("uniform", model, prompts, [64] * arguments.prompts, 1.0)
    if "mixed" in arguments.parts:
        passed &= compare("mixed", model, prompts, lengths, 1.5)
    if "episodes" in arguments.parts:
        passed &= compare_episodes(model, arguments.episodes)
    raise SystemExit(0 if passed else 1)


if __name__ == "__main__":
    main()
