"""Answers prompts with tools: calls are answered until a response has none, and that one is graded."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from roll.data.prompts import Prompt
from roll.env_managers.records import EnvManagerLimits, EpisodeSpec
from roll.env_managers.retrying import Retries, play_again
from roll.env_managers.trajectory import TrajectoryEnvManager
from roll.envs.base import Outcome, TextEnv
from roll.envs.tool_using import ToolUsingEnv
from roll.rewards.base import RewardRequest
from roll.rewards.groups import add, refuse
from roll.schedulers.answers import AnswerLimits, Grader
from roll.schedulers.tasks import Task
from roll.trajectories.model import Status, Trajectory

if TYPE_CHECKING:
    from roll.config.tool_use import ToolUse

ToolNames = Sequence[str | Mapping[str, Mapping[str, Any] | None]]


class AskedPrompt(TextEnv):
    """A prompt as an environment: it begins with the prompt's messages, and the first answer ends it."""

    def __init__(self, prompt: Prompt) -> None:
        super().__init__(action_pattern=None, worst_reward=0.0, render_mode=None)
        self._prompt = prompt

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin with the messages of the prompt."""
        observation, info = super().reset(seed=seed, options=options)
        return observation, info | {"messages": self._prompt.messages}

    def start(self) -> str:
        """Return the last message."""
        return self._prompt.messages[-1]["content"]

    def act(self, action: str) -> Outcome:
        """Take what is graded elsewhere."""
        return Outcome("", {}, terminated=True)


class ToolPromptPlay:
    """Answers prompts with tools; see :class:`roll.schedulers.tasks.Play`.

    What verifiers read is the last response, with the conversation before it. Penalties for wrong calls count beside
    the grade.

    Args:
        manager: Plays a conversation, sampled.
        greedy: The same with the likeliest tokens, for the greedy member of a group.
        release: Lets the engines forget the prefix of a conversation that has ended.
        tools: What may be called.
        use: Limits, formats, penalties.
        graders: What grades the responses of each domain.
        limits: How long responses may get.
        run_seed: Keys the sampling noise.
        retries: How often a conversation is begun again that lost a tool's server.
    """

    def __init__(
        self,
        *,
        manager: TrajectoryEnvManager,
        greedy: TrajectoryEnvManager,
        release: Callable[[str], Awaitable[None]],
        tools: ToolNames,
        use: ToolUse,
        graders: Mapping[str, Grader],
        limits: AnswerLimits,
        run_seed: int,
        retries: Retries,
    ) -> None:
        self._managers = {False: manager, True: greedy}
        self._release = release
        self._tools = tools
        self._use = use
        self._graders = graders
        self._limits = limits
        self._run_seed = run_seed
        self._retries = retries

    async def __call__(self, task: Task[Prompt], episode: int, greedy: bool) -> Trajectory:
        """Answer a prompt once; prompts of smaller numbers are served first."""
        prompt = task.what
        spec = EpisodeSpec(task.tag, task.group_id, episode, 0, self._run_seed, priority=task.number)
        attempt = partial(self._managers[greedy].run, spec, partial(self._asked, prompt))
        try:
            trajectory = await play_again(await attempt(), attempt, self._retries)
        finally:
            await self._release(spec.trajectory_id)
        trajectory.initial_hash = prompt.key
        trajectory.final_observation = "" if prompt.ground_truth is None else f"right answer: {prompt.ground_truth}"
        if trajectory.status.is_error or not trajectory.turns:
            trajectory.error = f"{prompt.key}: {trajectory.error}"
            return trajectory
        await self._grade(prompt, trajectory)
        return trajectory

    def _asked(self, prompt: Prompt) -> ToolUsingEnv:
        return ToolUsingEnv(AskedPrompt(prompt), self._tools, self._use)

    async def _grade(self, prompt: Prompt, trajectory: Trajectory) -> None:
        last = trajectory.turns[-1]
        begun = time.perf_counter()
        request = RewardRequest(
            messages=trajectory.conversation[:-1],
            response=last.response,
            ground_truth=prompt.ground_truth,
            row=prompt.row,
            domain=prompt.domain,
            tag=prompt.tag,
            finish_reason="length" if trajectory.status is Status.TRUNCATED_LENGTH else "stop",
            response_tokens=len(last.completion_ids),
            max_response_tokens=self._limits.max_new_tokens,
        )
        grade = await self._graders[prompt.domain].grade(request)
        last.seconds["reward"] = time.perf_counter() - begun
        if grade.score is None:
            refuse(trajectory, grade.error or "no grade")
        else:
            add(trajectory, grade.parts, {**grade.raw, **grade.metrics, "success": float(grade.correct)})


def limits_with_tools(limits: AnswerLimits, use: ToolUse) -> EnvManagerLimits:
    """Return how long a conversation may get: one response, and a turn for each call before it."""
    return EnvManagerLimits(1, limits.sequence_length, limits.max_new_tokens, None, use.max_calls)
