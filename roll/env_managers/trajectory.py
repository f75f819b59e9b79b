"""The trajectory env manager: one episode as one conversation, token in and token out."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable
from typing import Any, TypeVar

from roll.common.threads import CallThreads, CallTimeoutError
from roll.common.unavailable import UnavailableError
from roll.env_managers.event_loop import EnvEventLoop, to_its_end_within
from roll.env_managers.metrics import aggregate_metrics
from roll.env_managers.prompt import Prompt
from roll.env_managers.records import (
    EnvManagerLimits,
    EpisodeSpec,
    Timeouts,
    TokenInvariantError,
)
from roll.env_managers.session import EnvFailure, EnvSession, EnvStep, picture_of
from roll.env_managers.templates import Templates
from roll.generation import (
    Activity,
    Completion,
    Generate,
    GenerationRequest,
    NoActivity,
    Picture,
    SamplingParams,
    generation_seed,
)
from roll.rendering import ConversationError, PictureRenderer, Renderer, as_users, spoken, without_pictures
from roll.tools import Toolbox
from roll.trajectories.model import Status, Trajectory, Turn

T = TypeVar("T")

_IN_PLACE = EnvEventLoop()


class TrajectoryEnvManager:
    """Runs episodes of one tag; any number at the same time, in one event loop.

    Everything that changes belongs to the episode, so one manager serves all episodes of a tag.
    """

    def __init__(
        self,
        *,
        renderer: Renderer,
        generate: Generate,
        limits: EnvManagerLimits,
        sampling: SamplingParams | None = None,
        templates: Templates | None = None,
        timeouts: Timeouts | None = None,
        threads: CallThreads | EnvEventLoop | None = None,
        activity: Activity | None = None,
    ) -> None:
        """Hold what all episodes share.

        Args:
            renderer: Messages to tokens and back.
            generate: Called once per turn. What it raises ends the run: an engine that fails is not an environment's
                fault. ``UnavailableError`` ends the episode alone. When it outlives its time-out it is cancelled.
            limits: How long an episode may get.
            sampling: How tokens are drawn. A response ends at the renderer's stop tokens too, and is no longer than the
                limits allow; by default that is all.
            templates: What the policy is told; by default the instruction, then bare observations.
            timeouts: Seconds per phase.
            threads: Where environments run: in threads, or in the event loop where they are awaited. ``None`` calls
                them in place, which is faster for environments that only compute for microseconds, but there a step
                that hangs stops everything. A coroutine is awaited in the event loop in any case.
            activity: Told when an episode works outside the engine.
        """
        self.renderer = renderer
        self.generate = generate
        self.limits = limits
        longest = limits.max_response_length
        self.sampling = (sampling or SamplingParams(longest)).within(longest, renderer.stop_token_ids)
        self.templates = templates or Templates()
        self.timeouts = timeouts or Timeouts()
        self.threads = threads
        self.activity = activity or NoActivity()

    async def run(self, spec: EpisodeSpec, make_env: Callable[[], Any]) -> Trajectory:
        """Run one episode to its end.

        An environment that raises, hangs or returns rubbish ends its episode with ``ERROR_ENV``, ``ERROR_UNAVAILABLE``
        or ``ERROR_TIMEOUT`` and a readable ``error``; the turns before it are complete. An aborted completion ends it
        with ``ABORTED``. If the coroutine is cancelled, ``CancelledError`` goes on to the caller and there is no
        trajectory; the environment is closed in either case.

        Args:
            spec: Which episode.
            make_env: Returns a new environment (``roll.envs.TextEnv``, or any Gymnasium environment with text
                observations that takes the response as its action).

        Raises:
            TokenInvariantError: If a prompt does not extend the previous one.
            ValueError: If ``generate`` returns no tokens, or not one log-probability per token.
        """
        episode = _Episode(self, spec, make_env)
        with self.activity.outside_engine():
            try:
                await episode.start()
                while episode.is_running:
                    await episode.turn()
            except EnvFailure as failure:
                episode.fail(Status.ERROR_UNAVAILABLE if failure.is_unavailable else Status.ERROR_ENV, str(failure))
            except UnavailableError as failure:
                episode.fail(Status.ERROR_UNAVAILABLE, str(failure))
            except ConversationError as failure:
                episode.fail(Status.ERROR_ENV, str(failure))
            finally:
                episode.leave()
            return episode.result()


class _Episode:
    """The changing state of one episode."""

    def __init__(self, manager: TrajectoryEnvManager, spec: EpisodeSpec, make_env: Callable[[], Any]) -> None:
        self._manager = manager
        self._spec = spec
        self._session = EnvSession(make_env, spec.seed, spec.episode)
        self._trajectory = Trajectory(spec.tag, spec.group_id, spec.episode, spec.seed, began=time.time())
        self._messages: list[dict[str, str]] = []
        self._instruction = ""
        self._renderer = manager.renderer
        self._said: list[dict[str, str]] = []
        self._tool_turns = 0
        self._observation = ""
        self._frame: str | None = None
        self._prompt = Prompt()
        self._shown: list[bytes] = []
        self._forked = False
        self._has_forked = False
        self._metrics_agg: dict[str, str] = {}
        self._response = ""

    @property
    def is_running(self) -> bool:
        return self._trajectory.status is Status.RUNNING

    def leave(self) -> None:
        """Close the environment, if a failure, a time-out or a cancellation left it open."""
        self._session.abandon((self._manager.threads or _IN_PLACE).detach)

    def result(self) -> Trajectory:
        trajectory = self._trajectory
        trajectory.final_observation = self._observation
        trajectory.final_frame = self._frame
        trajectory.metrics = aggregate_metrics([turn.metrics for turn in trajectory.turns], self._metrics_agg)
        if not trajectory.status.is_error:
            trajectory.score = sum(turn.reward for turn in trajectory.turns)
        return trajectory

    async def start(self) -> None:
        called = await self._call("reset", self._session.start, self._manager.timeouts.reset)
        if called is None:
            return
        start, _ = called
        self._observation, self._frame, self._instruction = start.observation, start.frame, start.instruction
        self._trajectory.initial_hash = hashlib.blake2b(start.observation.encode(), digest_size=8).hexdigest()
        told = "" if start.toolbox is None else self._offer(start.toolbox)
        begun = start.messages
        if begun is None:
            begun = [{"role": "system", "content": self._manager.templates.system(self._values(0))}]
            begun.append(self._user_message(0))
        else:
            begun = [self._words(message) for message in begun]
        said = begun[0]["content"] if begun[0]["role"] == "system" else ""
        system = "\n\n".join(filter(None, (said, told)))
        if system:
            self._messages.append({"role": "system", "content": system})
        self._messages += begun[begun[0]["role"] == "system" :]
        self._trajectory.messages = [dict(message) for message in self._messages]
        self._prompt.begin(*self._with_pictures(self._renderer.render_ids(self._messages), self._shown))

    async def turn(self) -> None:
        index = len(self._trajectory.turns)
        if not self._fits():
            await self._stop_for_length(index)
            return
        began, began_at = time.perf_counter(), time.time()
        completion = await self._generate(index)
        if completion is None:
            return
        generated = time.perf_counter()
        self._response = spoken(completion, self._manager.renderer)
        limits = self._manager.limits
        last = index + 1 >= limits.max_steps + limits.max_tool_turns
        # Not a closure: a step that hangs would keep the whole episode.
        step = partial(self._session.step, self._response, last)
        called = await self._call("step", step, self._manager.timeouts.step)
        if called is None:
            return
        taken, queued = called
        stepped = time.perf_counter()
        turn = self._record(completion, taken)
        turn.began = began_at
        stepping = "tool" if _is_of_tools(taken) else "env"
        waited = completion.waited
        turn.seconds = {"wait": waited} if waited else {}
        turn.seconds |= {
            "generate": generated - began - waited,
            stepping: stepped - generated - queued,
            "queue": queued,
        }
        if taken.terminated:
            self._trajectory.status = Status.COMPLETED
        elif taken.truncated or last:
            self._trajectory.status = Status.TRUNCATED_TURNS
        elif index + 1 - self._tool_turns >= limits.max_steps:
            self._trajectory.status = Status.TRUNCATED_TURNS
            await self._call("close", self._session.close, self._manager.timeouts.step)
        else:
            self._extend(completion, taken)
            turn.seconds["render"] = time.perf_counter() - stepped

    def _fits(self) -> bool:
        limits = self._manager.limits
        return len(self._prompt.ids) + limits.max_response_length <= limits.sequence_length

    async def _stop_for_length(self, index: int) -> None:
        limits = self._manager.limits
        self._trajectory.status = Status.TRUNCATED_LENGTH
        if index == 0:
            self._trajectory.error = self._place(
                f"the first prompt has {len(self._prompt.ids)} tokens, and with a response of "
                f"{limits.max_response_length} exceeds sequence_length={limits.sequence_length}: raise "
                "sequence_length or shorten the templates"
            )
        await self._call("close", self._session.close, self._manager.timeouts.step)

    async def _generate(self, index: int) -> Completion | None:
        manager, spec = self._manager, self._spec
        request = GenerationRequest(
            request_id=f"{spec.trajectory_id}/{index}",
            prompt_ids=self._prompt.ids,
            sampling=manager.sampling,
            seed=generation_seed(spec.run_seed, spec.group_id, spec.episode, index),
            session=spec.trajectory_id,
            priority=spec.priority,
            messages=[dict(message) for message in self._messages] if self._renderer.text_only else None,
            pictures=self._prompt.pictures,
        )
        limit = asyncio.timeout(manager.timeouts.generate)
        manager.activity.leave_env()
        try:
            async with limit:
                completion = await manager.generate(request)
        except TimeoutError:
            if not limit.expired():
                raise
            self.fail(Status.ERROR_TIMEOUT, f"generate took longer than {manager.timeouts.generate:g} s")
            return None
        finally:
            manager.activity.enter_env()
        if completion.finish_reason == "abort":
            self.fail(Status.ABORTED, completion.problem or "the run aborted this turn's generation")
            return None
        if (
            completion.text is None
            and not completion.token_ids
            or len(completion.token_ids) != len(completion.logprobs)
        ):
            raise ValueError(
                self._place(
                    f"generate returned {len(completion.token_ids)} tokens and {len(completion.logprobs)} "
                    "log-probabilities; it must return at least one token and one log-probability for each"
                )
            )
        return completion

    def _record(self, completion: Completion, step: EnvStep) -> Turn:
        turn = Turn(
            prompt_ids=self._prompt.added,
            completion_ids=list(completion.token_ids),
            logprobs=list(completion.logprobs),
            policy_version=completion.policy_version,
            observation=self._observation,
            response=self._response,
            action=step.action,
            reward=step.reward,
            reward_parts=step.reward_parts,
            metrics=step.metrics,
            frame=self._frame,
            starts_sample=self._forked,
            messages=self._said,
            pictures=self._prompt.added_pictures,
        )
        self._trajectory.turns.append(turn)
        self._tool_turns += _is_of_tools(step)
        self._observation, self._frame = step.observation, step.frame
        self._metrics_agg.update(step.metrics_agg)
        return turn

    def _extend(self, completion: Completion, step: EnvStep) -> None:
        """Make the next turn's prompt: the previous tokens and a bridge, or the whole conversation rendered anew."""
        before = len(self._shown)
        said = self._new_messages(step)
        self._said = [] if step.messages is None else said
        history = self._messages if self._has_forked else None
        bridge = self._renderer.next_ids(completion.token_ids, said, history)
        self._messages += [{"role": "assistant", "content": self._response}, *said]
        self._forked = bridge is None
        if bridge is None:
            self._has_forked = True
            self._prompt.begin(*self._with_pictures(self._renderer.render_ids(self._messages), self._shown))
            return
        self._prompt.extend(completion.token_ids, *self._with_pictures(bridge, self._shown[before:]))
        self._check_prompt()

    def _with_pictures(self, ids: list[int], shown: list[bytes]) -> tuple[list[int], list[Picture]]:
        """Return tokens with placeholders for what is shown among them."""
        if not shown:
            return ids, []
        assert isinstance(self._renderer, PictureRenderer)  # of a run that shows pictures
        return self._renderer.expanded(ids, shown)

    def _check_prompt(self) -> None:
        """Check that the next prompt starts with the tokens that training will see, which are those recorded."""
        turns = self._trajectory.turns
        recorded: list[int] = []
        start = next((i for i in range(len(turns) - 1, 0, -1) if turns[i].starts_sample), 0)
        for turn in turns[start:]:
            recorded += turn.prompt_ids
            recorded += turn.completion_ids
        if self._prompt.ids[: len(recorded)] != recorded:
            pairs = zip(self._prompt.ids, recorded, strict=False)
            differs = next((position for position, (ours, theirs) in enumerate(pairs) if ours != theirs), 0)
            raise TokenInvariantError(
                self._place(
                    f"the next prompt differs from the previous prompt and completion at token {differs}; generate "
                    "must not change the prompt it was given, nor the completion it returned"
                )
            )

    def _offer(self, toolbox: Toolbox) -> str:
        """Let the chat template describe the tools, if calls in its form are read; else return the description."""
        renderer = self._manager.renderer.with_tools(toolbox.schemas)
        if renderer is not None:
            name, arguments = toolbox.example
            written = renderer.written_call(name, arguments)
            if written is not None and toolbox.reads(written, name, arguments):
                self._renderer = renderer
                return ""
        return toolbox.description()

    def _new_messages(self, step: EnvStep) -> list[dict[str, str]]:
        """Return what follows a response: the observation as the user's message, or the messages of the environment.

        What tools say becomes the user's, set off by tags, where the chat template has no such role.

        Raises:
            EnvFailure: The template has no place for what the system says.
        """
        if step.messages is None:
            return [self._user_message(len(self._trajectory.turns) - self._tool_turns)]
        roles = {message["role"] for message in step.messages}
        for role in sorted(roles - {"tool"}):
            problem = self._renderer.role_problem(role)
            if problem is not None:
                raise EnvFailure(f"info['messages'] has a message of the role {role}, and {problem}")
        said = [self._words(message) for message in step.messages]
        if "tool" not in roles or self._renderer.role_problem("tool") is None:
            return said
        return as_users(said)

    def _user_message(self, index: int) -> dict[str, str]:
        templates = self._manager.templates
        message = {"role": "user", "content": templates.turn(self._values(index))}
        if templates.show == "text":
            return self._words(message)
        self._shown.append(picture_of(self._frame))
        return message

    def _words(self, message: dict[str, str]) -> dict[str, str]:
        """Return a message in which nothing is taken for a picture."""
        if not isinstance(self._renderer, PictureRenderer):
            return message
        return {**message, "content": without_pictures(message["content"])}

    def _values(self, index: int) -> dict[str, object]:
        limits = self._manager.limits
        return {
            "turn_idx": index + 1,
            "observation": self._observation,
            "actions_left": limits.max_steps - index,
            "max_steps": limits.max_steps,
            "max_response_length": limits.max_response_length,
            "instruction": self._instruction,
        }

    async def _call(
        self, phase: str, function: Callable[[], T | Awaitable[T]], timeout: float | None
    ) -> tuple[T, float] | None:
        """Call the environment; return the result and the seconds it queued, or ``None`` after a time-out."""
        threads, queued = self._manager.threads, 0.0
        try:
            if threads is None:
                result = function()
            else:
                result, queued = await threads.call(function, timeout)
            if isawaitable(result):
                return await to_its_end_within(result, timeout), queued
            return result, queued
        except CallTimeoutError:
            self.fail(
                Status.ERROR_TIMEOUT,
                f"{phase} took longer than timeouts.{'reset' if phase == 'reset' else 'step'}={timeout:g} s; the "
                "environment was given up",
            )
            return None

    def fail(self, status: Status, reason: str) -> None:
        self._trajectory.status = status
        # What an environment says may hold halves of surrogate pairs, which no file can.
        self._trajectory.error = self._place(reason).encode(errors="backslashreplace").decode()

    def _place(self, reason: str) -> str:
        spec = self._spec
        turn = len(self._trajectory.turns)
        said = f"; the last response was {self._response[:200]!r}" if self._response else ""
        return f"{spec.tag} ({spec.trajectory_id}, seed {spec.seed}, turn {turn}): {reason}{said}"


def _is_of_tools(step: EnvStep) -> bool:
    """Whether tools answered alone, so that the environment took no step."""
    return step.messages is not None and all(message["role"] == "tool" for message in step.messages)
