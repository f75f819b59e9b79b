"""Turns what env managers ask for into requests to a generation engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from roll.env_managers.records import GenerateCall
from roll.strategies.base import Completion, GenerationRequest, GenerationStrategy, SamplingParams

Generate = Callable[[GenerateCall], Awaitable[Completion]]


class GenerationScheduler:
    """Routes calls to one engine, with the sampling parameters of their phase.

    Args:
        engine: The generation strategy.
    """

    def __init__(self, engine: GenerationStrategy) -> None:
        self.engine = engine
        self.sampled_tokens = 0

    def generator(self, sampling: SamplingParams) -> Generate:
        """Return the function that env managers call; limits and stop tokens of a call override ``sampling``'s."""

        async def generate(call: GenerateCall) -> Completion:
            stop = tuple(dict.fromkeys((*call.stop_token_ids, *sampling.stop_token_ids)))
            request = GenerationRequest(
                request_id=call.request_id,
                prompt_ids=call.prompt_ids,
                sampling=replace(
                    sampling,
                    max_new_tokens=min(call.max_new_tokens, sampling.max_new_tokens),
                    stop_token_ids=stop,
                ),
                seed=call.seed,
                session=call.session,
                priority=call.priority,
            )
            completion = await self.engine.generate(request)
            self.sampled_tokens += len(completion.token_ids)
            return completion

        return generate

    async def release(self, session: str) -> None:
        """Let the engine forget the prefix of a finished trajectory."""
        await self.engine.release(session)
