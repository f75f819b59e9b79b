"""Answers prompts: samples several responses to each, has them graded, and replaces groups that teach nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from roll.data.prompts import Prompt, PromptSource
from roll.generation import (
    Activity,
    Completion,
    Generate,
    GenerationRequest,
    NoActivity,
    SamplingParams,
    generation_seed,
)
from roll.rendering import Decoder
from roll.rewards.base import Grade, RewardRequest
from roll.schedulers.members import Spares, cancel, play_group
from roll.schedulers.prompt_search import Collected, Keep, PromptSearch
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup, Turn

OnProgress = Callable[[int, int], None]
"""Called with (graded, wanted) responses."""


class Grader(Protocol):
    """Grades responses of one domain; :class:`roll.rewards.rubric.Rubric` is one."""

    async def grade(self, request: RewardRequest) -> Grade:
        """Return the grade of one response."""
        ...


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """How long responses may get.

    Attributes:
        max_new_tokens: Tokens of a response, stop token included.
        sequence_length: Tokens of prompt and response together.
    """

    max_new_tokens: int
    sequence_length: int


class PromptScheduler:
    """Turns prompts into graded groups; any number at the same time, in one event loop.

    Args:
        generate: Samples one completion.
        sampling: How tokens are drawn; a response ends at the decoder's stop tokens too.
        decoder: Tokens to text.
        graders: What grades the responses of each domain.
        limits: How long responses may get.
        run_seed: Keys the sampling noise, with the group's name and the number of the response.
        activity: Told while responses are graded, where what is sampled next depends on the grades.
        grade_at_end: Grade when all responses of a round are there, instead of each as it is finished.
        greedy: How tokens are drawn for the ``baseline`` of each group. ``None`` for groups without.
        spares: Responses beyond the size of a group, in place of those that break.
    """

    def __init__(
        self,
        *,
        generate: Generate,
        sampling: SamplingParams,
        decoder: Decoder,
        graders: Mapping[str, Grader],
        limits: AnswerLimits,
        run_seed: int,
        activity: Activity | None = None,
        grade_at_end: bool = False,
        greedy: SamplingParams | None = None,
        spares: Spares | None = None,
    ) -> None:
        self._generate = generate
        self._sampling = sampling
        self._decoder = decoder
        self._graders = graders
        self._limits = limits
        self._run_seed = run_seed
        self._activity = activity or NoActivity()
        self._grade_at_end = grade_at_end
        self._greedy = greedy
        self._spares = spares or Spares()

    async def collect(
        self,
        source: PromptSource,
        start: int,
        wanted: int,
        size: int,
        *,
        keep: Keep | None = None,
        most: int | None = None,
        additional: int = 0,
        on_progress: OnProgress | None = None,
    ) -> Collected:
        """Answer prompts from ``start`` on until ``wanted`` groups pass ``keep``.

        Groups are accepted in the order of the data, never in the order in which they finish: short responses have no
        advantage, and the same seed gives the same groups.

        Args:
            source: The prompts.
            start: Position of the first.
            wanted: Groups of a step.
            size: Responses per prompt.
            keep: The filter; without it every group is taken.
            most: Prompts to try at most; without it as many as are wanted.
            additional: Prompts to have under way beyond those that are still missing, so that a replacement is at hand.
            on_progress: Told after every graded response.

        Returns:
            The groups: fewer than wanted if ``most`` prompts did not hold as many, unfiltered ones if none passed.
        """
        search = PromptSearch(start, wanted, max(most or wanted, wanted), keep)
        graded = 0

        def count(_: Trajectory) -> None:
            nonlocal graded
            graded += 1
            if on_progress is not None:
                on_progress(min(graded, wanted * size), wanted * size)

        async def answer(position: int, together: asyncio.Barrier | None) -> int:
            prompt = source.at(position)
            group = await self._group(prompt, _train_id(position), size, position, count, together)
            search.finish(position, group)
            # The engine is to wait until the prompts that replace this one, if any, are under way.
            self._activity.enter_env()
            return position

        running: set[asyncio.Task[int]] = set()
        try:
            while not search.complete:
                begun = search.admit(len(running), additional)
                responses = len(begun) * (size + self._spares.count + (self._greedy is not None))
                together = asyncio.Barrier(responses) if self._grade_at_end and begun else None
                running |= {asyncio.create_task(answer(position, together)) for position in begun}
                if not running:
                    break
                until = asyncio.FIRST_EXCEPTION if self._grade_at_end else asyncio.FIRST_COMPLETED
                done, running = await asyncio.wait(running, return_when=until)
                for task in done:
                    task.result()
                    self._activity.leave_env()
        finally:
            await cancel(running)
        return search.result(aborted=len(running))

    async def answer_all(
        self,
        prompts: Sequence[Prompt],
        size: int,
        *,
        prefix: str,
        at_a_time: int,
        on_progress: OnProgress | None = None,
    ) -> list[TrajectoryGroup]:
        """Answer every prompt with ``size`` responses.

        Args:
            prompts: The prompts.
            size: Responses per prompt.
            prefix: Start of the group ids, which the sampling noise depends on.
            at_a_time: Prompts under way at the same time.
            on_progress: Told after every graded response.

        Returns:
            One group per prompt, in order.
        """
        free = asyncio.Semaphore(at_a_time)
        graded = 0

        def count(_: Trajectory) -> None:
            nonlocal graded
            graded += 1
            if on_progress is not None:
                on_progress(graded, len(prompts) * size)

        async def answer(index: int, prompt: Prompt) -> TrajectoryGroup:
            async with free:
                return await self._group(prompt, f"{prefix}{index:07d}", size, index, count)

        tasks = [asyncio.create_task(answer(index, prompt)) for index, prompt in enumerate(prompts)]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            await cancel(tasks)

    async def answer_group(self, source: PromptSource, position: int, size: int) -> TrajectoryGroup:
        """Answer one training prompt with ``size`` responses; positions that come first are served first."""
        return await self._group(source.at(position), _train_id(position), size, position, lambda _: None)

    async def grade_recorded(
        self, prompt: Prompt, response: str, group_id: str, episode: int, completion: Completion | None = None
    ) -> Trajectory:
        """Grade a response that was recorded earlier; without ``completion`` the trajectory has no tokens."""
        return await self._grade(prompt, group_id, episode, completion or Completion([], [], "stop"), response, 0.0)

    async def _group(
        self,
        prompt: Prompt,
        group_id: str,
        size: int,
        priority: int,
        on_graded: Callable[[Trajectory], None],
        together: asyncio.Barrier | None = None,
    ) -> TrajectoryGroup:
        async def one(episode: int, is_greedy: bool) -> Trajectory:
            sampling = self._greedy if is_greedy and self._greedy is not None else self._sampling
            trajectory = await self._answer(prompt, group_id, episode, priority, sampling, together)
            if not is_greedy:
                on_graded(trajectory)
            return trajectory

        played = await play_group(one, size, self._spares, self._greedy is not None)
        return TrajectoryGroup(group_id, prompt.tag, played.members, domain=prompt.domain, baseline=played.baseline)

    async def _answer(
        self,
        prompt: Prompt,
        group_id: str,
        episode: int,
        priority: int,
        sampling: SamplingParams,
        together: asyncio.Barrier | None,
    ) -> Trajectory:
        room = self._limits.sequence_length - len(prompt.prompt_ids)
        begun = time.perf_counter()
        completion = await self._generate(
            GenerationRequest(
                request_id=f"{group_id}/{episode}",
                prompt_ids=prompt.prompt_ids,
                sampling=sampling.within(min(self._limits.max_new_tokens, room), self._decoder.stop_token_ids),
                seed=generation_seed(self._run_seed, group_id, episode, 0),
                priority=priority,
            )
        )
        seconds = time.perf_counter() - begun
        response = self._decoder.decode(completion.token_ids)
        if together is not None:
            await together.wait()
        with self._activity.outside_engine():
            return await self._grade(prompt, group_id, episode, completion, response, seconds)

    async def _grade(
        self, prompt: Prompt, group_id: str, episode: int, completion: Completion, response: str, seconds: float
    ) -> Trajectory:
        begun = time.perf_counter()
        grade = await self._graders[prompt.domain].grade(
            RewardRequest(
                messages=prompt.messages,
                response=response,
                ground_truth=prompt.ground_truth,
                row=prompt.row,
                domain=prompt.domain,
                tag=prompt.tag,
                finish_reason=completion.finish_reason,
                response_tokens=len(completion.token_ids),
                max_response_tokens=self._limits.max_new_tokens,
            )
        )
        trajectory = _trajectory(prompt, group_id, episode, completion, response, grade)
        trajectory.turns[0].seconds.update(generate=seconds, reward=time.perf_counter() - begun)
        return trajectory


def _train_id(position: int) -> str:
    return f"train-{position:07d}"


def _trajectory(
    prompt: Prompt, group_id: str, episode: int, completion: Completion, response: str, grade: Grade
) -> Trajectory:
    """Return a graded response as an episode of one turn."""
    status = Status.COMPLETED if completion.finish_reason == "stop" else Status.TRUNCATED_LENGTH
    if completion.finish_reason == "abort":
        status = Status.ABORTED
    elif grade.score is None:
        status = Status.ERROR_REWARD
    turn = Turn(
        prompt_ids=list(prompt.prompt_ids),
        completion_ids=list(completion.token_ids),
        logprobs=list(completion.logprobs),
        policy_version=completion.policy_version,
        observation=prompt.messages[-1]["content"],
        response=response,
        action="",
        reward=grade.score or 0.0,
        reward_parts=dict(grade.parts),
        metrics=dict(grade.metrics),
    )
    return Trajectory(
        tag=prompt.tag,
        group_id=group_id,
        episode=episode,
        seed=0,
        initial_hash=prompt.key,
        turns=[turn],
        status=status,
        score=grade.score,
        error=None if grade.score is not None else f"{prompt.key}: {grade.error}",
        final_observation="" if prompt.ground_truth is None else f"right answer: {prompt.ground_truth}",
        metrics={**grade.raw, **grade.metrics, "success": float(grade.correct)},
        messages=[dict(message) for message in prompt.messages],
    )
