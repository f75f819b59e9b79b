"""An engine that keeps a book of its own of everything it sampled, and agents that treat their history as they like."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from roll.gateway import Answers, Asked, ChatMessage, Name, Recorder, ServedPolicy, turns_of
from roll.generation import Completion, GenerationRequest, SamplingParams
from roll.rendering import Renderer
from roll.trajectories.model import Trajectory
from roll.trajectories.samples import samples_from

Sampled = tuple[tuple[int, ...], tuple[int, ...]]
"""A prompt, and what was sampled behind it."""

ROOM = 1 << 20


class BookEngine:
    """Answers with the tokens that it is told, and writes down what it sampled behind what."""

    def __init__(self, next_ids: Callable[[GenerationRequest], Sequence[int]]) -> None:
        self.book: Counter[Sampled] = Counter()
        self.requests: list[GenerationRequest] = []
        self._next_ids = next_ids

    async def generate(self, request: GenerationRequest) -> Completion:
        ids = list(self._next_ids(request))
        self.requests.append(request)
        for _ in range(request.seed % 5):  # whoever asks first is not the first to be answered
            await asyncio.sleep(0)
        self.book[tuple(request.prompt_ids), tuple(ids)] += 1
        return Completion(ids, [-float(token % 7) for token in ids], "stop", (3, 3))


def recorder(engine: BookEngine, renderer: Renderer, **policy: Any) -> Recorder:
    defaults: dict[str, Any] = {"sampling": SamplingParams(64), "sequence_length": ROOM}
    return Recorder(ServedPolicy(renderer=renderer, generate=engine.generate, **defaults | policy), Name(7, "group"))


def trajectory_of(recorder: Recorder) -> Trajectory:
    return Trajectory("agent", "group", 0, 0, turns=turns_of(recorder))


def trained(trajectory: Trajectory) -> Counter[Sampled]:
    """What samples train on: every stretch of tokens of one turn, with the tokens of the sample before it."""
    found: Counter[Sampled] = Counter()
    for sample in samples_from(trajectory):
        for turn in range(sample.first_turn, sample.last_turn + 1):
            places = [place for place, number in enumerate(sample.turn_index) if number == turn]
            assert places == list(range(places[0], places[-1] + 1))
            assert all(sample.response_mask[place] for place in places)
            assert [sample.logprobs[place] for place in places] == [-float(sample.token_ids[p] % 7) for p in places]
            found[tuple(sample.token_ids[: places[0]]), tuple(sample.token_ids[p] for p in places)] += 1
        assert sum(sample.response_mask) == sum(number >= 0 for number in sample.turn_index)
    return found


def user(text: str) -> ChatMessage:
    return ChatMessage("user", text)


async def say(recorder: Recorder, messages: Sequence[ChatMessage], **asked: Any) -> Answers:
    return await recorder.ask(Asked(messages=list(messages), **asked))
