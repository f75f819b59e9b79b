"""A generation engine of your own; ``python examples/custom_engine.py`` trains Sokoban with what it samples.

It reads the whole prompt again for every token, which is slow and simple. The configuration names this module in
``strategy_modules``, so any other script can use it too. Any key can be changed on the command line:
``python examples/custom_engine.py max_steps=20``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from roll.config import AgenticConfig, launch
from roll.generation import Completion, GenerationRequest, SamplingParams, fold_seed
from roll.strategies import EngineJob, StrategyDescription, register_strategy
from roll.strategies.generation.sampling_limits import Refusal, check_limits
from roll.strategies.generation.serving import check_prompt, check_sampling

if TYPE_CHECKING:  # a program should not import torch before its configuration is known to be good
    from torch import Generator

    from roll.strategies.base import WeightUpdate

HEEDED = ("max_new_tokens", "temperature", "stop_token_ids")
"""What it can do of :class:`SamplingParams`; anything else is refused."""
MEMORY = {"weights", "kv_cache"}
"""What an engine on a GPU would free when it sleeps."""


class PlainEngine:
    """Samples with a model in this process; :class:`roll.strategies.GenerationStrategy` says what a method must do."""

    def __init__(self, job: EngineJob) -> None:
        self.model, self.max_length = job.load().eval(), job.max_length
        self.version, self.closed = 0, False
        self.running: dict[str, Completion] = {}  # by request
        self.held_by, self.free = set[str](), asyncio.Event()
        self.free.set()

    async def generate(self, request: GenerationRequest) -> Completion:
        """Return the completion of ``request``; cancelling the caller ends it."""
        import torch

        self._check(request)
        answer = self.running[request.request_id] = Completion([], [], "", (self.version, self.version))
        noise = torch.Generator().manual_seed(fold_seed(request.seed))
        try:
            while not answer.finish_reason:
                await asyncio.sleep(0)  # others take a step now, and may abort this request or hold the engine
                await self.free.wait()
                if not answer.finish_reason:
                    self._sample_token(request, answer, noise)
        finally:
            del self.running[request.request_id]
        return answer

    def _check(self, request: GenerationRequest) -> None:
        """Refuse what cannot be answered."""
        if self.closed:
            raise RuntimeError("the engine is closed")
        if request.request_id in self.running:
            raise ValueError(f"request {request.request_id!r} is already running; request ids must be unique")
        check_sampling(request.sampling)
        check_limits(refusals(request.sampling), request.request_id)
        check_prompt(request, self.max_length, self.model.get_input_embeddings().num_embeddings)

    def _sample_token(self, request: GenerationRequest, answer: Completion, noise: Generator) -> None:
        """Add a token to an answer. The log-prob is that of the distribution that it is drawn from."""
        import torch

        tokens, sampling = request.prompt_ids + answer.token_ids, request.sampling
        logits = self.model(torch.tensor([tokens], device=self.model.device)).logits[0, -1].float().cpu()
        log_probs = (logits / (sampling.temperature or 1)).log_softmax(-1)
        drawn = torch.multinomial(log_probs.exp(), 1, generator=noise) if sampling.temperature else log_probs.argmax()
        answer.policy_version = (answer.policy_version[0] if answer.token_ids else self.version, self.version)
        answer.token_ids.append(int(drawn))
        answer.logprobs.append(float(log_probs[drawn]))
        if int(drawn) in sampling.stop_token_ids:
            answer.finish_reason = "stop"
        elif len(answer.token_ids) == sampling.max_new_tokens or len(tokens) + 1 == self.max_length:
            answer.finish_reason = "length"

    async def abort(self, request_id: str) -> None:
        """End a request, which is answered with what it has."""
        if request_id in self.running:
            self.running[request_id].finish_reason = "abort"

    async def release(self, session: str) -> None:
        """Forget a conversation; this engine remembers none."""

    async def update_weights(self, update: WeightUpdate) -> None:
        """Take new weights; requests go on with them."""
        own = dict(self.model.named_parameters())
        for name, tensor in update.named_tensors:
            own[name].copy_(tensor.detach())
        self.version = update.version

    def _hold(self, by: set[str]) -> None:
        """Sample nothing while there is a reason not to."""
        self.held_by = by
        (self.free.clear if by else self.free.set)()

    async def pause(self) -> None:
        """Sample nothing until :meth:`resume`."""
        self._hold(self.held_by | {"pause"})

    async def resume(self) -> None:
        """Sample again."""
        self._hold(self.held_by - {"pause"})

    async def sleep(self) -> None:
        """Sample nothing until :meth:`wake`."""
        self._hold(self.held_by | MEMORY)

    async def wake(self, tags: Sequence[str] | None = None) -> None:
        """Sample again when everything is back."""
        self._hold(self.held_by - (MEMORY if tags is None else set(tags)))

    async def close(self) -> None:
        """End all requests."""
        self.closed = True
        for request_id in self.running:
            await self.abort(request_id)
        self._hold(set())


def refusals(sampling: SamplingParams) -> Iterator[Refusal]:
    """Yield what the engine cannot do; the configuration is asked too, before a model loads."""
    for key, default in asdict(SamplingParams()).items():
        if key not in HEEDED and getattr(sampling, key) != default:
            yield Refusal(key, f"the plain engine has no {key}", "leave it out, or use strategy hf_infer")


# What the rest of the library must know of it.
register_strategy(StrategyDescription(name="plain", engine=PlainEngine, refusals=refusals, computes_as_trainer=True))


def run(config: AgenticConfig) -> object:
    """Train with it. The heavy imports happen only once the configuration is known to be good."""
    from roll.pipelines.agentic import run_agentic

    return run_agentic(config)


if __name__ == "__main__":
    launch(run, config_dir=Path(__file__).parent / "config", config_name="custom_engine")
