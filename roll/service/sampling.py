"""Weights that clients sample from: an engine for each, made when it is asked, and ended when others are asked more."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import torch
from transformers import PreTrainedModel

from roll.config.worker import WorkerConfig
from roll.generation import GenerationRequest, SamplingParams, generation_seed
from roll.service.records import RefusedError, Sampled
from roll.strategies import EngineJob
from roll.strategies.base import GenerationStrategy
from roll.strategies.building import build_engine

_ENGINE = WorkerConfig().strategy_args.strategy_name


class LiveEngines:
    """Which samplers have an engine, and with it memory for what it samples: no more than so many, except all at work.

    Args:
        most: So many. Above it the one that was not asked for longest, and is not at work, gives its engine back.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._samplers: dict[Sampler, None] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._samplers)

    async def take(self, sampler: Sampler) -> None:
        """Let a sampler have an engine, which is at work."""
        self._samplers.pop(sampler, None)
        self._samplers[sampler] = None
        resting = [each for each in self._samplers if not each.at_work]
        for each in resting[: max(len(self._samplers) - self._most, 0)]:
            if not each.at_work:  # it may have been asked while another one ended
                await self.end(each)

    async def end(self, sampler: Sampler) -> None:
        """Take the engine of a sampler away, if it has one."""
        self._samplers.pop(sampler, None)
        await sampler.close()

    async def close(self) -> None:
        """Take the engines of all samplers away."""
        for each in list(self._samplers):
            await self.end(each)


class Sampler:
    """One set of weights.

    Args:
        engines: Which samplers have an engine.
        folder: Where the model's configuration is.
        model: Frozen.
        longest: Most tokens of a prompt and an answer.
        decode: Tokens to text, for texts that end an answer.
        computing: Where passes are computed that are no sampling.
    """

    def __init__(
        self,
        engines: LiveEngines,
        folder: str,
        model: PreTrainedModel,
        longest: int,
        decode: Callable[[list[int]], str],
        computing: Executor,
    ) -> None:
        self.at_work = 0
        self._engines = engines
        self._folder = folder
        self._model = model
        self._longest = longest
        self._decode = decode
        self._computing = computing
        self._engine: GenerationStrategy | None = None
        self._numbers = itertools.count()

    async def sample(
        self, prompt: Sequence[int], count: int, sampling: SamplingParams, seed: int | None, *, prompt_logprobs: bool
    ) -> Sampled:
        """Return answers to a prompt.

        Args:
            prompt: Token ids.
            count: How many answers.
            sampling: How they are drawn.
            seed: Keys the noise; ``None`` for any.
            prompt_logprobs: Whether log-probs of the prompt are wanted too.

        Raises:
            RefusedError: The prompt is none of this model, or there is no room for an answer.
        """
        words = int(self._model.config.vocab_size)
        if not prompt or min(prompt) < 0 or max(prompt) >= words:
            raise RefusedError(f"the prompt has no tokens, or some that the model does not have ({words})")
        room = self._longest - len(prompt)
        if room < 1:
            raise RefusedError(f"the prompt has {len(prompt)} tokens, and there is room for {self._longest - 1}")
        noise, limits = secrets.randbits(63) if seed is None else seed, sampling.within(room)
        asked = [
            GenerationRequest(
                f"sample-{next(self._numbers)}", list(prompt), limits, generation_seed(noise, "service", number, 0)
            )
            for number in range(count)
        ]
        self.at_work += 1
        try:
            await self._engines.take(self)
            found = await asyncio.gather(*map(self._ready().generate, asked))
        finally:
            self.at_work -= 1
        scored: Sequence[float | None] = ()
        if prompt_logprobs:
            loop = asyncio.get_running_loop()
            scored = await loop.run_in_executor(self._computing, self._score, list(prompt))
        return Sampled([(each.token_ids, each.logprobs, each.finish_reason == "stop") for each in found], scored)

    def _ready(self) -> GenerationStrategy:
        if self._engine is None:
            job = EngineJob(
                folder=lambda: self._folder, load=lambda: self._model, max_length=self._longest, decode=self._decode
            )
            self._engine = build_engine(_ENGINE, job)
        return self._engine

    def _score(self, prompt: list[int]) -> list[float | None]:
        with torch.no_grad():
            logits = self._model(input_ids=torch.tensor([prompt]), use_cache=False).logits[0, :-1].float()
        found = torch.log_softmax(logits, -1).gather(-1, torch.tensor(prompt[1:])[:, None])[:, 0]
        return [None, *found.tolist()]

    async def close(self) -> None:
        """End the engine; whoever samples again has another one."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()
