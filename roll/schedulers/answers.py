"""Answers prompts: a response to a prompt, graded, is a trajectory of one turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from roll.data.prompts import Prompt, PromptPlace, PromptSource
from roll.generation import (
    Activity,
    Completion,
    Generate,
    GenerationRequest,
    NoActivity,
    SamplingParams,
    generation_seed,
)
from roll.generation.pictures import picture_frame
from roll.rendering import Decoder, spoken
from roll.rewards.base import Grade, RewardRequest
from roll.schedulers.tasks import Task, TaskSource
from roll.trajectories.model import Status, Trajectory, Turn


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


class PromptPlay:
    """Answers prompts; see :class:`roll.schedulers.tasks.Play`. Any number at the same time, in one event loop.

    Args:
        generate: Samples one completion.
        sampling: How tokens are drawn.
        decoder: Tokens to text.
        graders: What grades the responses of each domain; those of other domains have no score.
        limits: How long responses may get.
        run_seed: Keys the sampling noise, with the group's name and the number of the response.
        activity: Told while responses are graded, where what is sampled next depends on the grades.
        grade_at_end: Grade when all responses under way are there, instead of each as it is finished.
        greedy: How tokens are drawn for the greedy member of a group, where there are such.
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
    ) -> None:
        self._generate = generate
        self._sampling = sampling
        self._decoder = decoder
        self._graders = graders
        self._limits = limits
        self._run_seed = run_seed
        self._activity = activity or NoActivity()
        self._together = _Together() if grade_at_end else None
        self._greedy = greedy

    async def __call__(self, task: Task[Prompt], episode: int, greedy: bool) -> Trajectory:
        """Answer a prompt once; prompts of smaller numbers are served first."""
        prompt, group_id = task.what, task.group_id
        sampling = self._greedy if greedy and self._greedy is not None else self._sampling
        room = self._limits.sequence_length - len(prompt.prompt_ids)
        begun, began = time.perf_counter(), time.time()
        generating = self._generate(
            GenerationRequest(
                request_id=f"{group_id}/{episode}",
                prompt_ids=prompt.prompt_ids,
                sampling=sampling.within(min(self._limits.max_new_tokens, room), self._decoder.stop_token_ids),
                seed=generation_seed(self._run_seed, group_id, episode, 0),
                priority=task.number,
                messages=prompt.messages if self._decoder.text_only else None,
                pictures=prompt.pictures,
            )
        )
        completion = await (generating if self._together is None else self._together.wait_for(generating))
        seconds = time.perf_counter() - begun
        response = spoken(completion, self._decoder)
        with self._activity.outside_engine():
            trajectory = await self._grade(prompt, group_id, episode, completion, response, seconds)
        trajectory.began = trajectory.turns[0].began = began
        return trajectory

    async def grade_recorded(
        self, prompt: Prompt, response: str, group_id: str, episode: int, completion: Completion | None = None
    ) -> Trajectory:
        """Grade a response that was recorded earlier; without ``completion`` the trajectory has no tokens."""
        return await self._grade(prompt, group_id, episode, completion or Completion([], [], "stop"), response, 0.0)

    async def _grade(
        self, prompt: Prompt, group_id: str, episode: int, completion: Completion, response: str, seconds: float
    ) -> Trajectory:
        begun = time.perf_counter()
        grader = self._graders.get(prompt.domain)
        if grader is None:
            trajectory = _trajectory(prompt, group_id, episode, completion, response, None)
            trajectory.turns[0].seconds.update(generate=seconds)
            return trajectory
        grade = await grader.grade(
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
        waited = min(completion.waited, seconds)
        took = {"wait": waited} if waited else {}
        took |= {"generate": seconds - waited, "reward": time.perf_counter() - begun}
        trajectory.turns[0].seconds.update(took)
        return trajectory


def prompt_source(prompts: PromptSource, size: int, prefix: str = "train-", pace: float = 1.0) -> TaskSource[Prompt]:
    """Return the training prompts as tasks without end, in the order of the data.

    Args:
        prompts: The prompts.
        size: Responses to each.
        prefix: Start of every group id; with the position it is unique within the run.
        pace: Groups of the run per prompt: numbers, by which engines serve, keep step with those of other sources.
    """

    def task(position: int) -> Task[Prompt]:
        return _task(prompts.at(position), f"{prefix}{position:07d}", size, int(position * pace))

    return task


def row_source(
    place: Callable[[int], PromptPlace], size: int, prefix: str = "train-", pace: float = 1.0
) -> TaskSource[int]:
    """Return the same tasks with the number of a prompt's row in place of the prompt.

    Args:
        place: Which prompt stands at a position.
        size: Responses to each.
        prefix: Start of every group id.
        pace: Groups of the run per prompt.
    """

    def task(position: int) -> Task[int]:
        at = place(position)
        return Task(at.row, at.tag, f"{prefix}{position:07d}", size, int(position * pace), at.domain)

    return task


def prompt_tasks(prompts: Sequence[Prompt], size: int, prefix: str) -> list[Task[Prompt]]:
    """Return prompts as tasks, each once; the sampling noise depends on ``prefix``."""
    return [_task(prompt, f"{prefix}{index:07d}", size, index) for index, prompt in enumerate(prompts)]


def row_tasks(places: Iterable[PromptPlace], size: int, prefix: str) -> list[Task[int]]:
    """Return the same tasks with the number of a prompt's row in place of the prompt."""
    return [Task(at.row, at.tag, f"{prefix}{n:07d}", size, n, at.domain) for n, at in enumerate(places)]


def _task(prompt: Prompt, group_id: str, size: int, number: int) -> Task[Prompt]:
    return Task(prompt, prompt.tag, group_id, size, number, prompt.domain)


def _trajectory(
    prompt: Prompt, group_id: str, episode: int, completion: Completion, response: str, grade: Grade | None
) -> Trajectory:
    """Return a response as an episode of one turn; without a grade it has no score, and broke nothing."""
    status = Status.COMPLETED if completion.finish_reason == "stop" else Status.TRUNCATED_LENGTH
    if completion.finish_reason == "abort":
        status = Status.ABORTED
    elif grade is not None and grade.score is None:
        status = Status.ERROR_REWARD
    problem = completion.problem or (grade.error if grade is not None and grade.score is None else "")
    turn = Turn(
        prompt_ids=list(prompt.prompt_ids),
        completion_ids=list(completion.token_ids),
        logprobs=list(completion.logprobs),
        policy_version=completion.policy_version,
        observation=prompt.messages[-1]["content"],
        response=response,
        action="",
        reward=0.0 if grade is None else grade.score or 0.0,
        reward_parts={} if grade is None else dict(grade.parts),
        metrics={} if grade is None else dict(grade.metrics),
        frame=picture_frame(prompt.pictures[0].data) if prompt.pictures else None,
        pictures=list(prompt.pictures),
    )
    return Trajectory(
        tag=prompt.tag,
        group_id=group_id,
        episode=episode,
        seed=0,
        initial_hash=prompt.key,
        turns=[turn],
        status=status,
        score=None if grade is None else grade.score,
        error=f"{prompt.key}: {problem}" if problem else None,
        final_observation="" if prompt.ground_truth is None else f"right answer: {prompt.ground_truth}",
        metrics={} if grade is None else {**grade.raw, **grade.metrics, "success": float(grade.correct)},
        messages=[dict(message) for message in prompt.messages],
    )


class _Together:
    """Lets responses wait until all that are under way are there."""

    def __init__(self) -> None:
        self._missing = 0
        self._complete = asyncio.Event()

    async def wait_for(self, generating: Awaitable[Completion]) -> Completion:
        """Return a completion once the others that were begun meanwhile are there too, or will never be."""
        self._missing += 1
        self._complete.clear()
        try:
            completion = await generating
            await asyncio.sleep(0)  # whoever begins in the same turn of the event loop counts
        finally:
            self._missing -= 1
            if not self._missing:
                self._complete.set()
        await self._complete.wait()
        return completion
