"""One real vLLM engine, which all tests of it share, and what its answers should be."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import psutil
import pytest
import torch
from transformers import PreTrainedModel

from roll.distributed.weight_sync import Place, WeightOffer, WeightReceiver, WeightSender, WeightSyncSettings, describe
from roll.models.loading import load_model
from roll.models.toy import WEIGHTS_DIRECTORY
from roll.strategies.base import Completion, GenerationRequest, SamplingParams, WeightUpdate

if TYPE_CHECKING:
    from roll.strategies.vllm import VllmStrategy

T = TypeVar("T")

needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here: run `make vllm`"
)

BLOCK = 128
"""Tokens of a block of the prefix cache on CPUs."""

MAX_LENGTH = 1024
BUCKET_BYTES = 64 * 1024
"""Small, so that the toy model's weights come in many pieces and fused layers are torn apart."""

_shared: list[Harness] = []


class Harness:
    """An engine, the event loop that it serves, and the Hugging Face model whose weights it has."""

    def __init__(self, **strategy_config: Any) -> None:
        from roll.strategies.vllm import VllmStrategy

        self.before = {child.pid for child in psutil.Process().children(recursive=True)}
        self.loop = asyncio.new_event_loop()
        self.engine: VllmStrategy = VllmStrategy(
            WEIGHTS_DIRECTORY,
            max_slots=64,
            max_length=MAX_LENGTH,
            bucket_bytes=BUCKET_BYTES,
            strategy_config=strategy_config,
        )
        self.model = load_model("toy")
        self.version = 0
        self._count = 0

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float = 60) -> T:
        """Run a coroutine on the engine's loop."""
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, timeout))

    def request(self, prompt: list[int], seed: int = 0, **sampling: Any) -> GenerationRequest:
        """Return a request with an id of its own."""
        self._count += 1
        return GenerationRequest(f"r{self._count}", prompt, SamplingParams(**sampling), seed=seed)

    def generate(self, prompt: list[int], seed: int = 0, **sampling: Any) -> Completion:
        """Return one completion."""
        return self.run(self.engine.generate(self.request(prompt, seed, **sampling)))

    def use(self, model: PreTrainedModel, version: int | None = None) -> None:
        """Give the engine the weights of a model."""
        self.model = model
        self.version = self.version + 1 if version is None else version
        self.run(self.engine.update_weights(WeightUpdate(self.version, model.named_parameters())))

    def processes(self) -> list[psutil.Process]:
        """Return the engine's processes that are alive."""
        children = psutil.Process().children(recursive=True)
        mine = [child for child in children if child.pid not in self.before]
        return [child for child in mine if "resource_tracker" not in " ".join(child.cmdline())]

    def close(self) -> None:
        """End the engine."""
        if not self.loop.is_closed():
            self.run(self.engine.close())
            self.loop.close()


def shared_harness(config: pytest.Config) -> Harness:
    """Return the engine of this session, started at the first call and after somebody closed it."""
    if not _shared or _shared[-1].loop.is_closed():
        _shared.append(Harness())
        config.add_cleanup(_shared[-1].close)
    return _shared[-1]


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


def random_prompt(length: int, seed: int) -> list[int]:
    """Return tokens of the toy's vocabulary."""
    return torch.randint(5, 300, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def changed_model(seed: int, scale: float = 0.02) -> PreTrainedModel:
    """Return the toy with noise on every parameter; it answers otherwise."""
    model = load_model("toy")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)
    return model


@torch.no_grad()
def greedy_tokens(model: PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    """Return the likeliest continuation."""
    tokens = torch.tensor([prompt])
    out = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()


@torch.no_grad()
def log_probs(model: PreTrainedModel, prompt: list[int], tokens: list[int], sampling: SamplingParams) -> torch.Tensor:
    """Return what the log-prob of each token is by definition, ``[tokens]``: temperature, then top-k, then top-p."""
    logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].double()
    logits = logits / (sampling.temperature or 1.0)
    found = []
    for row, token in zip(logits, tokens, strict=True):
        probabilities = row.softmax(-1)
        order = probabilities.argsort(descending=True)
        if sampling.temperature and sampling.top_k > 0:
            order = order[: sampling.top_k]
        kept = probabilities[order] / probabilities[order].sum()
        if sampling.temperature:
            before = kept.cumsum(0) - kept
            order, kept = order[before < sampling.top_p], kept[before < sampling.top_p]
        place = (order == token).nonzero()
        found.append((kept[place] / kept.sum()).log().item() if len(place) else float("-inf"))
    return torch.tensor(found)


def greatest_difference(model: PreTrainedModel, prompt: list[int], got: Completion, sampling: SamplingParams) -> float:
    """Return how far reported log-probs are from the model's."""
    return (log_probs(model, prompt, got.token_ids, sampling) - torch.tensor(got.logprobs)).abs().max().item()


LONG_PROMPT = random_prompt(3 * BLOCK + 17, 5)
GREEDY = SamplingParams(max_new_tokens=16, temperature=0.0)
