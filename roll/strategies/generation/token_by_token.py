"""An engine that is asked for one token at a time: all of a small engine except its model."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from roll.generation import Completion, GenerationRequest, SamplingParams, fold_seed
from roll.strategies.base import WeightUpdate
from roll.strategies.generation.sampling_limits import Refusal, all_but
from roll.strategies.generation.serving import check_request
from roll.strategies.generation.stop_strings import Decode, StopStrings

if TYPE_CHECKING:
    import torch

_MEMORY = frozenset({"weights", "kv_cache"})
"""What an engine on a GPU would free when it sleeps."""


def only_temperature(sampling: SamplingParams) -> Iterator[Refusal]:
    """Yield what an engine refuses whose :meth:`TokenByTokenEngine.next_token` heeds the temperature only."""
    return all_but("max_new_tokens", "temperature", "stop_token_ids", "stop_strings")(sampling)


class TokenByTokenEngine(ABC):
    """A :class:`roll.strategies.GenerationStrategy` in this process; a subclass says the two things it is about.

    These are the next token of a sequence (:meth:`next_token`) and new weights (:meth:`load_weights`). Requests take
    turns, a token each; they are frozen by a pause and by sleep, and end by stop tokens, by texts, or where the
    sequence is full.

    Args:
        max_length: Most tokens of a sequence, prompt and completion.
        vocabulary: Token ids are below this; ``None`` leaves them to :meth:`next_token`.
        decode: Makes text of tokens, where texts end responses.
        refusals: What the engine cannot do of a request's sampling.

    Attributes:
        version: Policy version of the weights.
    """

    def __init__(
        self,
        max_length: int,
        vocabulary: int | None = None,
        decode: Decode | None = None,
        refusals: Callable[[SamplingParams], Iterator[Refusal]] = only_temperature,
    ) -> None:
        self.version = 0
        self._max_length = max_length
        self._vocabulary = vocabulary
        self._stop_strings = StopStrings(decode)
        self._refusals = refusals
        self._closed = False
        self._running: dict[str, Completion] = {}
        self._held_by: frozenset[str] = frozenset()
        self._free = asyncio.Event()
        self._free.set()

    @abstractmethod
    def next_token(self, tokens: list[int], sampling: SamplingParams, noise: torch.Generator) -> tuple[int, float]:
        """Draw the token behind ``tokens``.

        Args:
            tokens: The sequence so far, prompt and completion.
            sampling: How to draw.
            noise: The random numbers of the request, to draw with; a greedy token needs none.

        Returns:
            The token, and its log-prob under the distribution that it was drawn from.
        """

    @abstractmethod
    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take whole tensors of any shape, by their Hugging Face names; forget what the old ones were used for."""

    async def generate(self, request: GenerationRequest) -> Completion:
        """Return the completion of ``request``; cancelling the caller ends it.

        Raises:
            ValueError: If the request cannot be answered.
            RuntimeError: If the engine is closed.
        """
        import torch

        if self._closed:
            raise RuntimeError("the engine is closed")
        check_request(
            request,
            is_running=request.request_id in self._running,
            max_length=self._max_length,
            vocabulary=self._vocabulary,
            stop_strings=self._stop_strings,
            refusals=self._refusals(request.sampling),
        )
        answer = self._running[request.request_id] = Completion([], [], "", (self.version, self.version))
        noise = torch.Generator().manual_seed(fold_seed(request.seed))
        try:
            while not answer.finish_reason:
                await asyncio.sleep(0)  # others take a step now, and may abort this request or hold the engine
                await self._free.wait()
                if not answer.finish_reason:
                    self._step(request, answer, noise)
        finally:
            del self._running[request.request_id]
        return answer

    def _step(self, request: GenerationRequest, answer: Completion, noise: torch.Generator) -> None:
        sampling, known = request.sampling, len(answer.token_ids)
        token, log_prob = self.next_token(request.prompt_ids + answer.token_ids, sampling, noise)
        answer.policy_version = (answer.policy_version[0] if known else self.version, self.version)
        answer.token_ids.append(token)
        answer.logprobs.append(log_prob)
        ended = self._stop_strings.end(answer.token_ids, sampling.stop_strings, known) is not None
        if token in sampling.stop_token_ids or ended:
            answer.finish_reason = "stop"
        elif known + 1 == sampling.max_new_tokens or len(request.prompt_ids) + known + 1 == self._max_length:
            answer.finish_reason = "length"

    async def abort(self, request_id: str) -> None:
        """End a request, which is answered with what it has."""
        if request_id in self._running:
            self._running[request_id].finish_reason = "abort"

    async def release(self, session: str) -> None:
        """Forget a conversation; none is remembered."""
        return

    async def update_weights(self, update: WeightUpdate) -> None:
        """Take new weights; requests go on with them."""
        self.load_weights(update.named_tensors)
        self.version = update.version

    async def pause(self) -> None:
        """Sample nothing until :meth:`resume`."""
        self._hold(self._held_by | {"pause"})

    async def resume(self) -> None:
        """Sample again."""
        self._hold(self._held_by - {"pause"})

    async def sleep(self) -> None:
        """Sample nothing until :meth:`wake`."""
        self._hold(self._held_by | _MEMORY)

    async def wake(self, tags: Sequence[str] | None = None) -> None:
        """Sample again when everything is back."""
        self._hold(self._held_by - (_MEMORY if tags is None else set(tags)))

    async def close(self) -> None:
        """End all requests."""
        self._closed = True
        for request_id in self._running:
            await self.abort(request_id)
        self._hold(frozenset())

    def _hold(self, by: frozenset[str]) -> None:
        """Sample nothing while there is a reason not to."""
        self._held_by = by
        (self._free.clear if by else self._free.set)()
