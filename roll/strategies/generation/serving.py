"""What generation strategies have in common: the check of a request, and an engine that serves one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import ClassVar, Self

from roll.generation import GenerationRequest, SamplingError, SamplingParams, ScoringRequest
from roll.strategies.generation.sampling_limits import Refusal
from roll.strategies.generation.stop_strings import StopStrings
from roll.strategies.jobs import EngineJob


def check_request(
    request: GenerationRequest,
    *,
    is_running: bool,
    max_length: int,
    vocabulary: int | None = None,
    stop_strings: StopStrings | None = None,
    refusals: Iterable[Refusal] = (),
    sees: bool = False,
) -> None:
    """Refuse a request that an engine cannot answer.

    Args:
        request: What is asked for.
        is_running: Whether a request with this id is running.
        max_length: Most tokens of prompt and completion.
        vocabulary: Token ids are below this; ``None`` leaves them to the engine.
        stop_strings: Looks for the texts that end a completion; ``None`` where ``refusals`` has them.
        refusals: What the request asks of the sampling that the engine cannot do.
        sees: Whether the engine takes pictures.

    Raises:
        ValueError: If it has no meaning, or its id is running.
        SamplingError: If it asks for what the engine cannot do.
    """
    check_sampling(request.sampling)
    if stop_strings is not None:
        stop_strings.check(request)
    for refusal in refusals:
        raise SamplingError(f"request {request.request_id!r}: {refusal.message}; {refusal.fix}")
    if is_running:
        raise ValueError(f"request {request.request_id!r} is already running; request ids must be unique")
    check_prompt(request, max_length, vocabulary)
    if request.pictures and not sees:
        raise ValueError(
            f"request {request.request_id!r} has pictures, and this engine takes text alone; "
            "use strategy_name: hf_infer"
        )


def check_prompt(request: GenerationRequest, max_length: int, vocabulary: int | None = None) -> None:
    """Refuse a prompt that an engine cannot continue.

    Args:
        request: What is asked for.
        max_length: Most tokens of prompt and completion.
        vocabulary: Token ids are below this; ``None`` leaves them to the engine.

    Raises:
        ValueError: The prompt is empty, leaves no room for a token, or has ids outside the vocabulary.
    """
    where, prompt = f"request {request.request_id!r}", request.prompt_ids
    if not prompt:
        raise ValueError(f"{where} has an empty prompt")
    if len(prompt) >= max_length:
        raise ValueError(
            f"{where}: a prompt of {len(prompt)} tokens leaves no room in max_length={max_length}; "
            "raise the engine's max_length or shorten the prompt"
        )
    if vocabulary is not None and (min(prompt) < 0 or max(prompt) >= vocabulary):
        raise ValueError(f"{where} has token ids outside the vocabulary [0, {vocabulary})")


def check_scoring(
    request: ScoringRequest, *, is_running: bool, max_length: int, vocabulary: int, most_named: int | None
) -> None:
    """Refuse given tokens that an engine cannot score.

    Args:
        request: What is asked for.
        is_running: Whether a request with this id is running.
        max_length: Most tokens of a sequence.
        vocabulary: Token ids are below this.
        most_named: Most tokens that the engine names at a place; ``None`` for one that was not made to score.

    Raises:
        ValueError: If it has no meaning or does not fit, or its id is running.
    """
    where, tokens = f"request {request.request_id!r}", request.token_ids
    if most_named is None:
        raise ValueError(f"{where}: this engine was not made to score tokens; make it with most_named")
    if not 0 <= request.most_named <= most_named:
        raise ValueError(f"{where}: most_named is {request.most_named}; this engine was made for 0 to {most_named}")
    if is_running:
        raise ValueError(f"{where} is already running; request ids must be unique")
    if not 1 <= request.start < len(tokens):
        raise ValueError(f"{where}: start is {request.start}; it must be from 1 to {len(tokens) - 1}, the last token")
    if len(tokens) > max_length:
        raise ValueError(f"{where} has {len(tokens)} tokens, more than the engine's max_length={max_length}")
    if min(tokens) < 0 or max(tokens) >= vocabulary:
        raise ValueError(f"{where} has token ids outside the vocabulary [0, {vocabulary})")


def check_sampling(params: SamplingParams) -> None:
    """Refuse parameters that have no meaning.

    Raises:
        ValueError: If ``max_new_tokens`` < 1, ``min_new_tokens`` is not between 0 and it, ``temperature`` < 0 or not
            finite, ``top_p`` outside (0, 1], ``min_p`` outside [0, 1], or ``repetition_penalty`` not above 0.
    """
    if params.max_new_tokens < 1:
        raise ValueError(f"sampling.max_new_tokens is {params.max_new_tokens}; it must be at least 1")
    if not 0 <= params.min_new_tokens <= params.max_new_tokens:
        raise ValueError(
            f"sampling.min_new_tokens is {params.min_new_tokens}; it must be between 0 and max_new_tokens, "
            f"{params.max_new_tokens}"
        )
    if not 0.0 <= params.min_p <= 1.0:
        raise ValueError(f"sampling.min_p is {params.min_p}; it must be in [0, 1], 0 keeps every token")
    if not 0.0 <= params.temperature < float("inf"):
        raise ValueError(f"sampling.temperature is {params.temperature}; it must be finite and >= 0 (0 is greedy)")
    if not 0.0 < params.top_p <= 1.0:
        raise ValueError(f"sampling.top_p is {params.top_p}; it must be in (0, 1], 1 keeps every token")
    if not 0.0 < params.repetition_penalty < float("inf"):
        raise ValueError(f"sampling.repetition_penalty is {params.repetition_penalty}; it must be above 0, 1 is off")


class ServedEngine:
    """An engine with processes of its own: the event loop that it serves, and the versions of its weights.

    Args:
        label: What the engine calls the weights that it has.
        version: Their policy version.
        random: Whether they are random: no request is answered with them.
    """

    engine_name: ClassVar[str]
    """Name of the strategy, for messages."""

    def __init__(self, label: str, version: int, random: bool) -> None:
        self._label = label
        self._versions = {label: version}
        self._changing = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._unusable = "load_format=dummy made random weights" if random else None

    @classmethod
    def for_job(cls, job: EngineJob) -> Self:
        """Return an engine that loads the model from its folder.

        Raises:
            ConfigError: The options are wrong.
        """
        make: Callable[..., Self] = cls
        return make(
            job.folder(),
            dtype=job.dtype,
            strategy_config=job.strategy_config,
            seed=job.seed,
            max_slots=job.max_slots,
            max_length=job.max_length,
            decode=job.decode,
            most_named=job.most_named,
        )

    @classmethod
    def check_sizes(cls, **sizes: int) -> None:
        """Refuse sizes below 1.

        Raises:
            ValueError: One is.
        """
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{cls.engine_name}: {name} is {size}; it must be at least 1")

    @property
    def policy_version(self) -> int:
        """Version of the weights in use."""
        return self._versions[self._label]

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self._versions[self._label] = version

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"{self.engine_name} is closed")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError(f"{self.engine_name} serves the event loop that first used it, and this is another one")

    def _check_usable(self) -> None:
        self._check_open()
        if self._unusable is not None:
            raise RuntimeError(f"{self.engine_name} has no valid weights: {self._unusable}; send a full update")
