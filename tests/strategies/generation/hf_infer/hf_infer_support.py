"""Tiny models and comparisons shared by the tests of the Hugging Face engine."""

from __future__ import annotations

import asyncio
import random

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from roll.generation import Completion, GenerationRequest
from roll.strategies.generation.hf_infer.strategy import HfInferStrategy

VOCABULARY = 97
SIZES = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    intermediate_size=48,
    max_position_embeddings=512,
    initializer_range=0.2,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)


def qwen(seed: int = 0, **options) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=True, **options)).eval()


def prompts(count: int, low: int = 1, high: int = 70, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCABULARY) for _ in range(rng.randint(low, high))] for _ in range(count)]


def engine_for(model, **options) -> HfInferStrategy:
    return HfInferStrategy(model, **({"max_slots": 8, "max_length": 256, "max_prefill_tokens": 64} | options))


def run_all(engine: HfInferStrategy, requests: list[GenerationRequest]) -> list[Completion]:
    async def main() -> list[Completion]:
        return list(await asyncio.gather(*(engine.generate(request) for request in requests)))

    return asyncio.run(asyncio.wait_for(main(), 300))


def full_log_probs(model, prompt: list[int], completion: Completion, temperature: float = 1.0) -> torch.Tensor:
    """``[completion, vocabulary]`` from one plain forward pass without cache or padding."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + completion.token_ids]), use_cache=False).logits[0]
    return (logits[len(prompt) - 1 : -1] / temperature).log_softmax(-1)


def assert_greedy_and_exact(model, prompt: list[int], completion: Completion) -> None:
    expected = full_log_probs(model, prompt, completion)
    ids = torch.tensor(completion.token_ids)
    assert completion.token_ids == expected.argmax(-1).tolist()
    torch.testing.assert_close(
        torch.tensor(completion.logprobs), expected[torch.arange(len(ids)), ids], atol=1e-5, rtol=0
    )
