"""An engine that answers with what was stored, and asks the policy where it is told to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from transformers import PreTrainedModel

from roll.config import RLConfig
from roll.generation import Activity, Completion, GenerationRequest
from roll.trajectories.model import Trajectory
from roll.workers.classes import worker_class
from roll.workers.engine import EngineWorker
from roll.workers.setup import Registered


@dataclass(slots=True)
class Script:
    """What is answered without a policy, and what was asked and drawn.

    Attributes:
        answers: Stored completions by the id of the request that they answered.
        draws_again: Whether the policy is asked for those too; what it says is kept in ``drawn`` and goes nowhere.
        goes_on: Whether the policy answers what was not stored; otherwise the episode ends there.
        temperature: Of what the policy then samples; ``None`` for that of the run.
        asked: The requests for stored answers.
        drawn: What the policy said to them.
    """

    answers: dict[str, Completion]
    draws_again: bool = False
    goes_on: bool = False
    temperature: float | None = None
    asked: dict[str, GenerationRequest] = field(default_factory=dict)
    drawn: dict[str, Completion] = field(default_factory=dict)

    @property
    def needs_policy(self) -> bool:
        """Whether a model must be loaded."""
        return self.draws_again or self.goes_on


def request_id(trajectory: str, turn: int, is_answer: bool) -> str:
    """Return the id of the request for a turn, counted from 0; an answer to a prompt is named as its trajectory."""
    return trajectory if is_answer else f"{trajectory}/{turn}"


def stored_answers(trajectories: Iterable[Trajectory], is_answer: bool) -> dict[str, Completion]:
    """Return every completion of stored episodes by the id of its request."""
    return {
        request_id(f"{each.group_id}/{each.episode}", index, is_answer): stored_completion(each, index)
        for each in trajectories
        for index in range(len(each.turns))
    }


def stored_completion(trajectory: Trajectory, index: int) -> Completion:
    """Return what an engine said at a turn, counted from 0."""
    turn = trajectory.turns[index]
    last = index == len(trajectory.turns) - 1
    # How a completion ended is stored for answers only, by their status, and read of those only.
    reason = "length" if last and trajectory.status == "truncated_length" else "stop"
    return Completion(list(turn.completion_ids), list(turn.logprobs), reason, turn.policy_version)


class StoredEngine:
    """Stands where :class:`roll.workers.engine.EngineWorker` does.

    Env managers and graders so play a stored episode exactly as they played it then: they know of nothing.

    Args:
        config: The run.
        registered: What user code registered.
        model: Not used: what is compared are stored weights.
        activity: Tells the policy's engine when everything is quiet.
        script: What to answer.
    """

    def __init__(
        self,
        config: RLConfig,
        registered: Registered,
        model: PreTrainedModel | None = None,
        activity: Activity | None = None,
        *,
        script: Script,
    ) -> None:
        self._script = script
        self._policy: EngineWorker | None = None
        if script.needs_policy:
            self._policy = worker_class(config, "actor_infer")(config, registered, None, activity)

    async def generate(self, request: GenerationRequest) -> Completion:
        """Return the stored completion, or what the policy says; an aborted one where there is neither."""
        script = self._script
        stored = script.answers.get(request.request_id)
        if stored is not None:
            script.asked[request.request_id] = request
            if script.draws_again and self._policy is not None:
                script.drawn[request.request_id] = await self._policy.generate(request)
            return replace(stored, token_ids=list(stored.token_ids), logprobs=list(stored.logprobs))
        if not script.goes_on or self._policy is None:
            return Completion([], [], "abort")
        if script.temperature is not None:
            request = replace(request, sampling=replace(request.sampling, temperature=script.temperature))
        return await self._policy.generate(request)

    async def abort(self, request_id: str) -> None:
        """End a running request."""
        if self._policy is not None:
            await self._policy.abort(request_id)

    async def release(self, session: str) -> None:
        """Forget the prefix kept for ``session``."""
        if self._policy is not None:
            await self._policy.release(session)

    async def close(self) -> None:
        """Free everything."""
        if self._policy is not None:
            await self._policy.close()
