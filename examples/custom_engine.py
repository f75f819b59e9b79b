"""A generation engine of your own; ``python examples/custom_engine.py`` trains Sokoban with what it samples.

It runs the model on one request at a time, token by token, and keeps each conversation's keys and values. The
configuration names this module in ``strategy_modules``, so any other script can use it too. Any key can be changed on
the command line: ``python examples/custom_engine.py max_steps=20``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll.config import AgenticConfig, launch
from roll.generation import Completion, GenerationRequest, SamplingParams, fold_seed
from roll.strategies import EngineJob, StrategyDescription, register_strategy

if TYPE_CHECKING:  # a program should not import torch before its configuration is known to be good
    from torch import Generator, Tensor

    from roll.strategies.base import WeightUpdate


def build(job: EngineJob) -> PlainEngine:
    """Return the engine of a run; ``job`` has all that the configuration says of it, and ways to the model."""
    return PlainEngine(job)


register_strategy(
    StrategyDescription(name="plain", engine=build, computes_as_trainer=True)  # what others must know of it
)


@dataclass
class Progress:
    """A request that runs, and the keys and values of the tokens in ``read``."""

    request: GenerationRequest
    cache: Any
    noise: Generator
    read: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reason: str | None = None


class PlainEngine:
    """Samples with a model in this process (see :class:`roll.strategies.base.GenerationStrategy`)."""

    def __init__(self, job: EngineJob) -> None:
        from roll.strategies.generation.stop_strings import StopStrings

        self.model = job.load().eval()
        self.max_length = job.max_length
        self.texts = StopStrings(job.decode)
        self.version, self.closed = 0, False
        self.running: dict[str, Progress] = {}
        self.sessions: dict[str, Progress] = {}
        self.paused, self.missing, self.may_step = False, set[str](), asyncio.Event()
        self.may_step.set()

    async def generate(self, request: GenerationRequest) -> Completion:
        """Return the completion of ``request``; cancelling the caller ends it."""
        self._check(request)
        mine, cached = self._begin(request)
        self.running[request.request_id] = mine
        first = None
        try:
            while mine.reason is None:
                await asyncio.sleep(0)  # others take a step now, and may pause or abort this one
                await self.may_step.wait()
                if mine.reason is None:
                    first = self.version if first is None else first
                    self._step(mine)
        finally:
            del self.running[request.request_id]
        if request.session is not None:
            self.sessions[request.session] = mine
        oldest = self.version if first is None else first
        return Completion(mine.tokens, mine.logprobs, str(mine.reason), (oldest, self.version), cached)

    def _check(self, request: GenerationRequest) -> None:
        from roll.strategies.generation.serving import check_prompt, check_sampling

        if self.closed:
            raise RuntimeError("the engine is closed")
        if request.request_id in self.running:
            raise ValueError(f"request {request.request_id!r} is already running; request ids must be unique")
        check_sampling(request.sampling)
        check_prompt(request, self.max_length, self.model.get_input_embeddings().num_embeddings)
        self.texts.check(request)

    def _begin(self, request: GenerationRequest) -> tuple[Progress, int]:
        """Return a request's progress, and how much of its prompt an earlier one of the session has read."""
        import torch
        from transformers import DynamicCache

        old = self.sessions.pop(request.session, None) if request.session is not None else None
        noise = torch.Generator().manual_seed(fold_seed(request.seed))
        if old is None:
            return Progress(request, DynamicCache(), noise), 0
        pairs = enumerate(zip(old.read, request.prompt_ids[:-1], strict=False))
        same = next((at for at, (a, b) in pairs if a != b), min(len(old.read), len(request.prompt_ids) - 1))
        old.cache.crop(same)
        return Progress(request, old.cache, noise, old.read[:same]), same

    def _step(self, mine: Progress) -> None:
        """Sample one token."""
        import torch

        everything = mine.request.prompt_ids + mine.tokens
        new, sampling = everything[len(mine.read) :], mine.request.sampling
        with torch.no_grad():
            output = self.model(torch.tensor([new], device=self.model.device), past_key_values=mine.cache)
            log_probs = _distribution(sampling, everything, output.logits[:, -1].float().cpu())
        mine.read = everything
        greedy = sampling.temperature == 0
        token = int(log_probs.argmax() if greedy else torch.multinomial(log_probs.exp(), 1, generator=mine.noise))
        mine.tokens.append(token)
        mine.logprobs.append(float(log_probs[token]))
        text_ends = self.texts.end(mine.tokens, sampling.stop_strings, len(mine.tokens) - 1) is not None
        if token in sampling.stop_token_ids or text_ends:
            mine.reason = "stop"
        elif len(mine.tokens) == sampling.max_new_tokens or len(everything) + 1 == self.max_length:
            mine.reason = "length"

    async def abort(self, request_id: str) -> None:
        """End a request, which is answered with what it has."""
        if request_id in self.running:
            self.running[request_id].reason = "abort"

    async def release(self, session: str) -> None:
        """Forget a conversation."""
        self.sessions.pop(session, None)

    async def update_weights(self, update: WeightUpdate) -> None:
        """Take new weights; what was read with the old ones is read again."""
        import torch
        from transformers import DynamicCache

        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, tensor in update.named_tensors:
                own[name].copy_(tensor)
        self.sessions.clear()
        for mine in self.running.values():
            mine.cache, mine.read = DynamicCache(), []
        self.version = update.version

    async def pause(self) -> None:
        """Take no steps."""
        self.paused = True
        self._steps_or_not()

    async def resume(self) -> None:
        """Take steps again."""
        self.paused = False
        self._steps_or_not()

    async def sleep(self) -> None:
        """Take no steps until :meth:`wake`; an engine on a GPU would free its memory."""
        self.missing = {"weights", "kv_cache"}
        self._steps_or_not()

    async def wake(self, tags: Sequence[str] | None = None) -> None:
        """Take steps again when everything that is named is back."""
        self.missing -= self.missing if tags is None else set(tags)
        self._steps_or_not()

    def _steps_or_not(self) -> None:
        free = not self.paused and not self.missing
        (self.may_step.set if free or self.closed else self.may_step.clear)()

    async def close(self) -> None:
        """End all requests."""
        self.closed = True
        for mine in self.running.values():
            mine.reason = "abort"
        self._steps_or_not()


def _distribution(sampling: SamplingParams, tokens: list[int], logits: Tensor) -> Tensor:
    """Return the log-probs of the distribution that a token is drawn from, ``[vocabulary]``."""
    import torch
    import transformers

    seen = torch.tensor([tokens])
    if sampling.repetition_penalty != 1:
        logits = transformers.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(seen, logits)
    if sampling.temperature > 0:
        logits = logits / sampling.temperature
        if sampling.top_k > 0:
            logits = transformers.TopKLogitsWarper(sampling.top_k)(seen, logits)
        if sampling.top_p < 1:
            logits = transformers.TopPLogitsWarper(sampling.top_p)(seen, logits)
    return logits[0].log_softmax(-1)


def run(config: AgenticConfig) -> object:
    """Train with it. The heavy imports happen only once the configuration is known to be good."""
    from roll.pipelines.agentic import run_agentic

    return run_agentic(config)


if __name__ == "__main__":
    launch(run, config_dir=Path(__file__).parent / "config", config_name="custom_engine")
