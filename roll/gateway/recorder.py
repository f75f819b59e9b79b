"""Answers the calls of one episode and records them token by token. Knows nothing of HTTP.

The messages of a call are matched to what was recorded by their content. Where the conversation goes on from a recorded
answer, the prompt is what was sampled before, as it was sampled, and a bridge of the chat template behind it; where the
agent changed its history, or the template would write it in another way, the conversation is rendered as a whole and a
branch begins. Nothing that was sampled is tokenised a second time and trained in that form.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from roll.gateway.errors import ApiError, invalid
from roll.gateway.prepared import Prepared
from roll.gateway.records import Answers, Asked
from roll.gateway.served import Name, ServedPolicy
from roll.gateway.tree import ConversationTree
from roll.generation import Completion, GenerationRequest, SamplingError, generation_seed


class Recorder:
    """The calls of one episode; any number at the same time, in one event loop.

    The noise of an answer is keyed by the conversation and not by when it is asked for, so that branches which run
    beside each other sample the same whoever comes first.

    Attributes:
        tree: What was recorded.
        refused: Calls that were not answered, by the code of their error.
        failure: Why no further call can be answered, if none can: an answer was given up by the run or took too long.
        error: What an engine raised: no fault of the agent, so whoever plays the episode is to raise it.
        kept_tokens: Tokens of earlier calls in prompts that are as they were sampled.
        history_tokens: All tokens of prompts that go on from earlier answers, where rendered anew with what was new.
    """

    def __init__(self, policy: ServedPolicy, name: Name) -> None:
        self.tree = ConversationTree()
        self.refused: Counter[str] = Counter()
        self.failure: ApiError | None = None
        self.error: Exception | None = None
        self.kept_tokens = 0
        self.history_tokens = 0
        self._policy = policy
        self._name = name
        self._asked = 0
        self._repeats: Counter[bytes] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._running = 0
        self._idle_since = time.perf_counter()
        self._closed = False

    async def ask(self, asked: Asked) -> Answers:
        """Answer a call, and record the answers.

        Raises:
            ApiError: The call cannot be answered.
        """
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await self._answered(asked)
        except ApiError as error:
            self.refused[error.code or str(error.status)] += 1
            raise
        finally:
            self._tasks.discard(task)

    async def close(self) -> None:
        """Answer no further call; those that are being answered are given up."""
        self._closed = True
        running = self._tasks - {asyncio.current_task()}
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    async def _answered(self, asked: Asked) -> Answers:
        began = time.perf_counter()
        outside = self.idle_seconds
        self._admit(asked)
        prepared = Prepared.of(asked, self._policy, self.tree)
        first, self._asked = self._asked, self._asked + asked.count
        seeds = self._seeds(prepared.match.digest, asked)
        rendered = time.perf_counter()
        with self._waiting():
            completions = await _all(self._generate(prepared, first + index, seed) for index, seed in enumerate(seeds))
        generated = time.perf_counter() - rendered
        self._count_kept(prepared)
        answers = []
        for index, completion in enumerate(completions):
            answer, response = prepared.answer(completion)
            seconds = {"generate": generated} | ({"env": outside, "render": rendered - began} if not index else {})
            self.tree.add(prepared.call(first + index, answer, response, seconds), prepared.match, answer.message)
            answers.append(answer)
        return Answers(prepared.prompt_ids, answers)

    def _admit(self, asked: Asked) -> None:
        most = self._policy.most_calls
        if self._closed:
            raise over()
        if self.failure is not None:
            raise self.failure
        if most is not None and self._asked + asked.count > most:
            message = f"This episode may make {most} calls, and has made {self._asked}. Raise max_steps of its tag."
            raise ApiError(403, message, code="too_many_calls")

    def _seeds(self, digest: bytes, asked: Asked) -> list[int]:
        """Return the keys of the noise of each answer; the same call once more gets noise of its own."""
        name = self._name
        if asked.seed is None:
            begun = self._repeats[digest]
            self._repeats[digest] += asked.count
        else:
            begun = (asked.seed + 1) << 32
        place = int.from_bytes(digest, "big")
        return [
            generation_seed(name.run_seed, name.group_id, name.episode, place + begun + index)
            for index in range(asked.count)
        ]

    async def _generate(self, prepared: Prepared, number: int, seed: int) -> Completion:
        name, policy = self._name, self._policy
        request = GenerationRequest(
            request_id=f"{name.session}/{number}",
            prompt_ids=prepared.prompt_ids,
            sampling=prepared.sampling,
            seed=seed,
            session=name.session,
            priority=name.priority,
            messages=[dict(message) for message in prepared.plain] if policy.renderer.text_only else None,
        )
        limit = asyncio.timeout(policy.timeout)
        try:
            async with limit:
                completion = await policy.generate(request)
        except TimeoutError:
            if not limit.expired():  # the engine's own
                self.error = RuntimeError("the engine raised TimeoutError")
                raise
            self.failure = ApiError(503, f"An answer took longer than {policy.timeout:g} s.", code="timeout")
            raise self.failure from None
        except SamplingError as error:
            raise invalid(f"The engine cannot do this: {error}.", None, "unsupported_parameter") from error
        except Exception as error:
            self.error = error
            raise
        if completion.finish_reason == "abort":
            why = completion.problem or "the run aborted this call's generation"
            self.failure = ApiError(503, f"No answer: {why}.", code="aborted")
            raise self.failure
        return completion

    def _count_kept(self, prepared: Prepared) -> None:
        """Count which tokens of the history stayed as they were sampled."""
        if prepared.parent is not None:
            kept = len(prepared.prompt_ids) - len(prepared.added_ids)
            self.kept_tokens += kept
            self.history_tokens += kept
        elif any(message["role"] == "assistant" for message in prepared.plain):
            self.history_tokens += len(prepared.prompt_ids)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Around the time that a call spends in the engine; with none there, the agent is at work."""
        self._running += 1
        if self._running == 1:
            self._policy.activity.leave_env()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._policy.activity.enter_env()
                self._idle_since = time.perf_counter()

    @property
    def idle_seconds(self) -> float:
        """How long no call has been waiting."""
        return 0.0 if self._running else time.perf_counter() - self._idle_since


def over() -> ApiError:
    """Return what calls are refused with once their episode is over."""
    return ApiError(410, "This episode is over: no further call is answered.", code="episode_over")


async def _all(asking: Iterable[Coroutine[Any, Any, Completion]]) -> list[Completion]:
    """Return what all of them return; when one fails, or the caller is cancelled, the others are given up."""
    tasks = [asyncio.ensure_future(each) for each in asking]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
