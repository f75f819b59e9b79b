"""One real vLLM engine, which all tests of it share, and what its answers should be."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Sequence
from typing import Any

import psutil
import pytest
from engines import (
    MAX_LENGTH,
    MOST_NAMED,
    EngineUnderTest,
    HuggingFace,
    changed_model,
    children_named,
    decode,
    greatest_difference,
    greedy_tokens,
    log_probs,
    random_prompt,
    toy_folder,
)
from transformers import PreTrainedModel

from roll.distributed.weight_sync import Place, WeightOffer, WeightReceiver, WeightSender, WeightSyncSettings, describe
from roll.generation import SamplingParams
from roll.models.loading import load_model
from roll.strategies.generation.vllm.description import VLLM

__all__ = [
    "BLOCK",
    "GREEDY",
    "LONG_PROMPT",
    "MAX_LENGTH",
    "Harness",
    "changed_model",
    "check_answers",
    "greatest_difference",
    "greedy_tokens",
    "log_probs",
    "needs_vllm",
    "random_prompt",
    "sender_to",
    "shared_harness",
    "sync_processes",
    "worker_place",
    "worker_receiver",
]

needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here: run `make vllm`"
)

BLOCK = 128
"""Tokens of a block of the prefix cache on CPUs."""

BUCKET_BYTES = 64 * 1024
"""Small, so that the toy model's weights come in many pieces and fused layers are torn apart."""

_shared: list[Harness] = []


class Harness(EngineUnderTest):
    """A vLLM engine."""

    about = VLLM

    def __init__(self, **strategy_config: Any) -> None:
        from roll.strategies.generation.vllm.strategy import VllmStrategy

        self.before = {child.pid for child in psutil.Process().children(recursive=True)}
        engine = VllmStrategy(
            toy_folder(),
            max_slots=64,
            max_length=MAX_LENGTH,
            bucket_bytes=BUCKET_BYTES,
            decode=decode,
            most_named=MOST_NAMED,
            strategy_config=strategy_config,
        )
        super().__init__(engine, HuggingFace(load_model("toy")))

    @property
    def model(self) -> PreTrainedModel:
        """The Hugging Face model whose weights it has."""
        assert isinstance(self.says, HuggingFace)
        return self.says.model

    @model.setter
    def model(self, model: PreTrainedModel) -> None:
        self.says = HuggingFace(model)

    def use(self, model: PreTrainedModel, version: int | None = None) -> None:
        """Give the engine the weights of a model."""
        if version is not None:
            self.version = version - 1
        self.run(self.update(HuggingFace(model)))

    def own_processes(self) -> list[psutil.Process]:
        return self.processes()

    def processes(self) -> list[psutil.Process]:
        """Return the engine's processes that are alive."""
        return children_named("VLLM::", self.before)


def shared_harness(config: pytest.Config) -> Harness:
    """Return the engine of this session with its first weights, started at the first call and after it was closed."""
    if not _shared or _shared[-1].loop.is_closed():
        _shared.append(Harness())
        config.add_cleanup(_shared[-1].close)
    engine = _shared[-1]
    engine.give_first_weights_back()
    return engine


def check_answers(vllm: Harness, model: PreTrainedModel, version: int) -> None:
    """The engine has this model's weights, and nothing cached of another's."""
    for prompt in (LONG_PROMPT, random_prompt(9, 2)):
        got = vllm.generate(prompt, max_new_tokens=GREEDY.max_new_tokens, temperature=0.0)
        assert got.cached_tokens == 0
        assert got.policy_version == (version, version)
        assert got.token_ids == greedy_tokens(model, prompt, GREEDY.max_new_tokens)
        assert greatest_difference(model, prompt, got, GREEDY) < 1e-4
    # The next one finds the prompt of several blocks in the cache.
    assert vllm.generate(LONG_PROMPT, max_new_tokens=1).cached_tokens == 3 * BLOCK


def worker_receiver(offer: WeightOffer, rank: int) -> WeightReceiver:
    """Make the end of one of the engine's processes."""
    return WeightReceiver(offer, f"worker {rank}")


def worker_place(rank: int) -> Place:
    """Return where one of the engine's processes runs."""
    return Place.here()


def sender_to(places: Sequence[Place], model: PreTrainedModel, settings: WeightSyncSettings) -> WeightSender:
    """Return the trainer's end of a sync with the engine's own processes."""
    named = {f"worker {rank}": place for rank, place in enumerate(places)}
    return WeightSender(describe(model.named_parameters()), named, settings)


async def sync_processes(vllm: Harness, sender: WeightSender, model: PreTrainedModel, number: int) -> None:
    """Send a model's weights to the engine's own processes as version ``number``."""
    sent = asyncio.create_task(asyncio.to_thread(sender.send, number, model.named_parameters()))
    assert await vllm.engine.receive_weights() == number
    await sent


LONG_PROMPT = random_prompt(3 * BLOCK + 17, 5)
GREEDY = SamplingParams(max_new_tokens=16, temperature=0.0)
