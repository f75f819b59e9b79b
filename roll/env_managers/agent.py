"""The env manager of agent programs: the program drives the episode, and the policy answers its calls."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from roll.common.threads import CallThreads, CallTimeoutError
from roll.env_managers.records import EpisodeSpec
from roll.env_managers.session import EnvFailure, EnvSession, EnvStart, blamed
from roll.env_managers.trajectory import TrajectoryEnvManager
from roll.envs.agent import UNTRAINED_MODEL, Played
from roll.gateway import AgentClient, AgentEndpoint, Name, Recorder, ServedPolicy, recorded_metrics, turns_of
from roll.generation import Activity, Completion, Generate, GenerationRequest
from roll.trajectories.model import Status, Trajectory


class AgentEnvManager(TrajectoryEnvManager):
    """Runs agent programs (:class:`roll.envs.agent.AgentEnv`); each calls the policy through a key of its own.

    A turn of the trajectory is an answer that the policy gave, and a branch is a training sample. The reward is that of
    the whole episode, and stands at its last answer. A program that crashes, hangs or never asks the policy ends its
    episode with an error: there is no score, and nothing of it is learned.

    Attributes:
        endpoint: Where programs reach the policy; whoever makes the manager sets it, and closes it.
    """

    endpoint: AgentEndpoint

    async def run(self, spec: EpisodeSpec, make_env: Callable[[], Any]) -> Trajectory:
        """Run one episode to its end; see :meth:`TrajectoryEnvManager.run`."""
        assert isinstance(self.threads, CallThreads)  # programs block
        # Before it counts as one that is about to ask: an engine that waited for it would never free a thread for it.
        async with self.threads.turn():
            return await self._played(_AgentEpisode(self, spec, make_env, self.threads))

    async def _played(self, episode: _AgentEpisode) -> Trajectory:
        with self.activity.outside_engine():
            try:
                await episode.play()
            except EnvFailure as failure:
                episode.fail(Status.ERROR_ENV, str(failure))
            finally:
                await episode.leave()
        return episode.result()


class _AgentSession(EnvSession):
    """An environment whose program plays the whole episode."""

    @property
    def timeout(self) -> float:
        """Seconds that the program may take."""
        return float(self._env.timeout)

    def play(self, client: AgentClient) -> Played:
        """Run the program; blocks.

        Raises:
            EnvFailure: It crashed, or came to nothing that is a reward.
        """
        with self._exclusive(), blamed("the agent"):
            played: Played = self._env.play(client)
            return played

    def stop(self) -> None:
        """End the program; its call returns then, if it ever does."""
        if self._env is not None:
            self._env.stop()


class _EpisodeActivity(Activity):
    """Of one episode, whose trained and other calls may wait at the same time: it leaves and comes back as a whole.

    Args:
        all_of_them: Told of it.
    """

    def __init__(self, all_of_them: Activity) -> None:
        super().__init__()
        self._all = all_of_them
        self._asking = 0

    def enter_env(self) -> None:
        """Report that no call of one recorder waits any longer."""
        self._asking -= 1
        if not self._asking:
            self._all.enter_env()

    def leave_env(self) -> None:
        """Report that a call of one recorder waits."""
        self._asking += 1
        if self._asking == 1:
            self._all.leave_env()


def _without_session(generate: Generate) -> Generate:
    """Return what keeps nothing in an engine that would have to be forgotten with the episode."""

    async def once(request: GenerationRequest) -> Completion:
        return await generate(replace(request, session=None))

    return once


class _AgentEpisode:
    """The changing state of one episode."""

    def __init__(
        self, manager: AgentEnvManager, spec: EpisodeSpec, make_env: Callable[[], Any], threads: CallThreads
    ) -> None:
        self._manager = manager
        self._spec = spec
        self._session = _AgentSession(make_env, spec.seed, spec.episode)
        self._threads = threads
        self._trajectory = Trajectory(spec.tag, spec.group_id, spec.episode, spec.seed)
        self._played: Played | None = None
        limits = manager.limits
        policy = ServedPolicy(
            renderer=manager.renderer,
            generate=manager.generate,
            sampling=manager.sampling,
            sequence_length=limits.sequence_length,
            timeout=manager.timeouts.generate,
            most_calls=limits.max_steps,
            activity=_EpisodeActivity(manager.activity),
        )
        self._recorder = Recorder(policy, Name(spec.run_seed, spec.group_id, spec.episode, spec.priority))
        # Its noise has a name of its own: what is not trained is not what is trained once more.
        aside = Name(spec.run_seed, f"{spec.group_id}/{UNTRAINED_MODEL}", spec.episode, spec.priority)
        self._untrained = Recorder(replace(policy, generate=_without_session(policy.generate)), aside)

    async def play(self) -> None:
        """Prepare the task, and let the program do it."""
        reset = self._manager.timeouts.reset
        try:
            start, _ = await self._threads.call(self._session.start, reset)
        except CallTimeoutError:
            self.fail(Status.ERROR_TIMEOUT, f"preparing the task took longer than timeouts.reset={reset:g} s")
            return
        assert isinstance(start, EnvStart)  # its reset is no coroutine
        self._trajectory.initial_hash = hashlib.blake2b(start.observation.encode(), digest_size=8).hexdigest()
        limit = self._session.timeout
        with self._manager.endpoint.admit(self._recorder, {UNTRAINED_MODEL: self._untrained}) as client:
            try:
                self._played, _ = await self._threads.call(lambda: self._session.play(client), limit)
            except CallTimeoutError:
                self.fail(Status.ERROR_TIMEOUT, f"the agent took longer than env_config.timeout={limit:g} s")

    async def leave(self) -> None:
        """End whatever still runs, and delete what the episode needed."""
        await self._recorder.close()
        await self._untrained.close()
        self._session.stop()
        self._session.abandon(self._threads.detach)

    def result(self) -> Trajectory:
        """Return the trajectory.

        Raises:
            Exception: What an engine raised, which is no fault of the agent.
        """
        for recorder in (self._recorder, self._untrained):
            if recorder.error is not None:
                raise recorder.error
        trajectory, played = self._trajectory, self._played
        trajectory.turns = turns_of(self._recorder)
        trajectory.metrics = recorded_metrics(self._recorder)
        self._judge()
        if trajectory.turns:
            first = next(self._recorder.tree.branches())[0]
            trajectory.messages = [dict(message) for message in first.history]
        if played is not None and not trajectory.status.is_error:
            last = trajectory.turns[-1]
            last.reward, last.reward_parts = played.reward, {"agent": played.reward}
            last.seconds["env"] = last.seconds.get("env", 0.0) + self._recorder.idle_seconds
            trajectory.score = played.reward
            trajectory.final_observation = played.answer
            trajectory.metrics |= played.metrics
        return trajectory

    def _judge(self) -> None:
        """Say how the episode ended."""
        trajectory, refused = self._trajectory, self._recorder.refused + self._untrained.refused
        failure = self._recorder.failure or self._untrained.failure
        if failure is not None:
            # What the program made of it is no matter: it never got the answer.
            status = Status.ERROR_TIMEOUT if failure.code == "timeout" else Status.ABORTED
            self.fail(status, failure.message)
        elif trajectory.status.is_error:
            return
        elif not trajectory.turns:
            hint = "does it use OPENAI_BASE_URL and OPENAI_API_KEY, or those of ANTHROPIC?"
            self.fail(Status.ERROR_ENV, f"the agent ended without an answer of the policy; {hint}")
        elif refused["context_length_exceeded"]:
            trajectory.status = Status.TRUNCATED_LENGTH
        elif refused["too_many_calls"]:
            trajectory.status = Status.TRUNCATED_TURNS
        else:
            trajectory.status = Status.COMPLETED

    def fail(self, status: Status, reason: str) -> None:
        """End the episode with an error."""
        spec, calls = self._spec, len(self._recorder.tree.calls)
        place = f"{spec.tag} ({spec.trajectory_id}, seed {spec.seed}, {calls} calls): {reason}{self._refusals()}"
        self._trajectory.status = status
        self._trajectory.error = place.encode(errors="backslashreplace").decode()

    def _refusals(self) -> str:
        refused = self._recorder.refused + self._untrained.refused
        named = ", ".join(f"{count} {code}" for code, count in sorted(refused.items()))
        return f"; calls that were refused: {named}" if named else ""
