"""An engine under test, the model that it should answer as, and what that model says."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import tempfile
from collections.abc import Coroutine, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psutil
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, RepetitionPenaltyLogitsProcessor

from roll.config.strategies import StrategyDescription, named
from roll.generation import Completion, GenerationRequest, SamplingParams
from roll.models.loading import load_model, load_tokenizer
from roll.models.toy import WEIGHTS_DIRECTORY
from roll.strategies.base import WeightUpdate
from roll.strategies.generation.hf_infer.description import HF_INFER

T = TypeVar("T")

MAX_LENGTH = 1024
LONG = 300
"""Tokens of a completion that something happens to meanwhile."""

MOST_NAMED = 5
"""Tokens that engines name at most, where they score those that are there."""

END_TOKEN = 308
LEADS_TO_END = [5, 6, 7]
"""What the toy policy goes on from with the end token."""


class Says(Protocol):
    """A model, as far as tests ask it."""

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """Return the likeliest continuation."""
        ...

    def log_probs(self, prompt: list[int], tokens: list[int], sampling: SamplingParams) -> torch.Tensor:
        """Return what the log-prob of each token is by definition, ``[tokens]``."""
        ...

    def distributions(self, tokens: list[int]) -> torch.Tensor:
        """Return the log-probs of all tokens in the place of each but the first, ``[tokens - 1, vocabulary]``."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Return what an engine is given."""
        ...


class HuggingFace:
    """What a Hugging Face model says, computed without cache or batch."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        return greedy_tokens(self.model, prompt, count)

    def log_probs(self, prompt: list[int], tokens: list[int], sampling: SamplingParams) -> torch.Tensor:
        return log_probs(self.model, prompt, tokens, sampling)

    @torch.no_grad()
    def distributions(self, tokens: list[int]) -> torch.Tensor:
        return self.model(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self.model.named_parameters()


class EngineUnderTest:
    """An engine, the event loop that it serves, and the model whose weights it has.

    Attributes:
        about: What it says of itself, and so what it refuses.
        keyed_noise: Whether a request's seed decides its tokens.
        keeps_prefixes: Whether a later request finds what an earlier one has read.
        leads_to_end: A prompt that the first model continues with the model's end token within eight tokens.
        end_token: That token.
        vocabulary: Token ids are below this.
    """

    about: StrategyDescription = HF_INFER
    keyed_noise = True
    keeps_prefixes = True
    leads_to_end = LEADS_TO_END
    end_token = END_TOKEN
    vocabulary = 491

    def __init__(self, engine: Any, says: Says) -> None:
        self.loop = asyncio.new_event_loop()
        self.engine = engine
        self.says = self.at_first = says
        self.version = 0
        self._count = 0

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float = 60) -> T:
        """Run a coroutine on the engine's loop."""
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, timeout))

    def request(
        self, prompt: list[int], seed: int = 0, session: str | None = None, **sampling: Any
    ) -> GenerationRequest:
        """Return a request with an id of its own."""
        self._count += 1
        return GenerationRequest(f"r{self._count}", prompt, SamplingParams(**sampling), seed=seed, session=session)

    def generate(self, prompt: list[int], seed: int = 0, session: str | None = None, **sampling: Any) -> Completion:
        """Return one completion."""
        return self.run(self.engine.generate(self.request(prompt, seed, session, **sampling)))

    def refuses(self, **sampling: Any) -> bool:
        """Return whether the description refuses this sampling; of a request, the engine then says the same."""
        if self.about.refusals is None:
            return False
        refused = list(named(self.about.refusals)(SamplingParams(**sampling)))
        if refused:
            with pytest.raises(ValueError, match=re.escape(f"{refused[0].message}; {refused[0].fix}")):
                self.generate([5], **sampling)
        return bool(refused)

    def all_at_once(self, requests: list[GenerationRequest]) -> list[Completion]:
        """Return the completions of requests that run beside each other."""

        async def crowd() -> list[Completion]:
            return list(await asyncio.gather(*(self.engine.generate(request) for request in requests)))

        return self.run(crowd())

    async def started(self, prompt: list[int], **sampling: Any) -> tuple[str, asyncio.Task[Completion]]:
        """Start a long request; return its id and its task when it has some tokens."""
        request = self.request(prompt, **{"max_new_tokens": LONG, **sampling})
        task = asyncio.create_task(self.engine.generate(request))
        await asyncio.sleep(0)
        # It runs beside it, and began later.
        await self.engine.generate(self.request(random_prompt(4, 0), max_new_tokens=8))
        assert not task.done()
        return request.request_id, task

    async def update(self, says: Says) -> None:
        """Give the engine the weights of another model."""
        await self.engine.update_weights(WeightUpdate(self.version + 1, says.named_parameters()))
        self.says, self.version = says, self.version + 1

    def changed(self, seed: int) -> Says:
        """Return another model of this kind."""
        return HuggingFace(changed_model(seed))

    def difference(self, prompt: list[int], got: Completion, sampling: SamplingParams) -> float:
        """Return how far reported log-probs are from the model's."""
        true = self.says.log_probs(prompt, got.token_ids, sampling)
        return (true - torch.tensor(got.logprobs)).abs().max().item()

    def decode(self, tokens: list[int]) -> str:
        """Return the text of tokens, as the engine was told."""
        return decode(tokens)

    def give_first_weights_back(self) -> None:
        """Undo what a test did, where it gave the engine others."""
        if self.says is not self.at_first:
            self.run(self.update(self.at_first))

    def own_processes(self) -> list[psutil.Process]:
        """Return the processes of the engine that live; none of an engine that lives in this process."""
        return []

    def close(self) -> None:
        """End the engine."""
        if not self.loop.is_closed():
            self.run(self.engine.close())
            self.loop.close()


def decode(tokens: list[int]) -> str:
    """Return the text of the toy's tokens, special ones written out."""
    return str(_tokenizer().decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))


@cache
def _tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer("toy")


@cache
def toy_folder() -> Path:
    """Return a folder with the toy policy, whose end token is one that it likes to say."""
    folder = Path(tempfile.mkdtemp(prefix="roll-toy-"))
    shutil.copytree(WEIGHTS_DIRECTORY, folder, dirs_exist_ok=True)
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((folder / name).read_text())
        settings |= {"eos_token_id": END_TOKEN}
        if "max_position_embeddings" in settings:
            # Sequences may be as long as the model's.
            settings |= {"max_position_embeddings": MAX_LENGTH}
        (folder / name).write_text(json.dumps(settings))
    return folder


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
    """Return what the log-prob of each token is by definition, ``[tokens]``.

    That is repetition penalty, stop tokens that come too early, temperature, min-p, then top-k, then top-p.
    """
    logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].double()
    penalty = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)
    there = [torch.tensor([prompt + tokens[:count]]) for count in range(len(tokens))]
    logits = torch.cat([penalty(before, row[None]) for before, row in zip(there, logits, strict=True)])
    logits[: sampling.min_new_tokens, list(sampling.stop_token_ids)] = float("-inf")
    logits = logits / (sampling.temperature or 1.0)
    found = []
    for row, token in zip(logits, tokens, strict=True):
        probabilities = row.softmax(-1)
        order = probabilities.argsort(descending=True)
        if sampling.temperature:
            order = order[probabilities[order] >= sampling.min_p * probabilities.max()]
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


def children_named(mark: str, before: set[int]) -> list[psutil.Process]:
    """Return the living children of this process that name themselves so, without those that were there before.

    The pools of processes that other tests share are children too.
    """
    return [
        child for child in psutil.Process().children(recursive=True) if child.pid not in before and _is(child, mark)
    ]


def _is(process: psutil.Process, mark: str) -> bool:
    try:
        return mark in " ".join(process.cmdline())
    except psutil.Error:  # it has ended meanwhile
        return False
