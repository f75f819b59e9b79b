"""What grades: the workers of each domain, and episodes that verifiers grade beside the environment's own reward."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from roll.config import PlayingConfig
from roll.config.grading_keys import GradedKeys
from roll.config.judges import JUDGES, judging
from roll.distributed import WorkerSpec
from roll.pipelines.roles.core import Sampler
from roll.pipelines.roles.engines import EngineRole
from roll.pipelines.roles.pool import WorkerPool
from roll.pipelines.sampling.answers_elsewhere import AnsweringWorker, Elsewhere
from roll.rewards.base import Grade, RewardRequest
from roll.rewards.concurrency import ConcurrencyLimit
from roll.rewards.groups import add, refuse
from roll.schedulers.answers import Grader
from roll.schedulers.levels import Level
from roll.schedulers.tasks import Play, Task
from roll.trajectories.model import Status, Trajectory
from roll.workers.classes import worker_class


class PooledGrader:
    """Grades in the workers of a domain; see :class:`roll.schedulers.answers.Grader`.

    Args:
        pool: The workers.
    """

    def __init__(self, pool: WorkerPool) -> None:
        self.pool = pool

    async def grade(self, request: RewardRequest) -> Grade:
        """Return the grade of one response; if its worker dies, another one grades it."""
        grade: Grade = await self.pool.call("grade", request)
        return grade


async def start_graders(
    config: GradedKeys, sampler: Sampler, elsewhere: Elsewhere | None = None
) -> dict[str, PooledGrader]:
    """Start the reward workers of every domain.

    Args:
        config: The run.
        sampler: What samples.
        elsewhere: Where prompts are and answers go, if the workers are to answer prompts too.

    Raises:
        ConfigError: If a verifier cannot be made.
    """
    local = config.cluster == "local"
    limit = ConcurrencyLimit(config.max_concurrent_rewards) if local else None
    text = sampler if local else None
    await _start_judges(config, sampler)
    judges = {name: engines.engines for name, engines in sampler.judges.items()}
    graders: dict[str, PooledGrader] = {}
    for domain in config.graded_domains:
        arguments = (config, domain, sampler.registered, sampler.engines.engines, text, limit, judges)
        role = f"rewards.{domain}"
        spec = WorkerSpec(cls=worker_class(config, role), args=arguments)
        if elsewhere is not None:
            spec = WorkerSpec(cls=AnsweringWorker, args=(spec.cls, elsewhere, *arguments))
        pool = sampler.pool(await sampler.cluster.start(role, spec))
        for name, asked in sampler.judges.items():
            asked.on_restart(partial(pool.tell, "judge_restarted", name))
        graders[domain] = PooledGrader(pool)
    return graders


async def _start_judges(config: GradedKeys, sampler: Sampler) -> None:
    """Start the engines of every judge that is not there yet.

    Raises:
        ConfigError: If its model cannot be loaded.
    """
    for name in config.judges:
        if name in sampler.judges:
            continue
        role, its = f"{JUDGES}.{name}", judging(config, name)
        spec = WorkerSpec(cls=worker_class(config, role), args=(its, sampler.registered))
        sampler.judges[name] = EngineRole(await sampler.cluster.start(role, spec), None, its)


@dataclass(frozen=True, slots=True)
class EpisodeGrader:
    """What grades the episodes of a tag.

    Attributes:
        domain: Its domain in ``rewards``.
        grader: The rubric.
        max_response_tokens: The limit of a response.
    """

    domain: str
    grader: Grader
    max_response_tokens: int


class GradedPlay:
    """Plays levels and has the episodes graded; see :class:`roll.schedulers.tasks.Play`.

    A verifier reads the last response, with the conversation before it. The grade is added to the score and to the
    reward of the last turn. An episode that cannot be graded is an ``error_reward``.

    Args:
        play: Plays one.
        graders: What grades, by tag; episodes of other tags have the environment's reward only.
    """

    def __init__(self, play: Play[Level], graders: Mapping[str, EpisodeGrader]) -> None:
        self._play = play
        self._graders = graders

    async def __call__(self, task: Task[Level], episode: int, greedy: bool) -> Trajectory:
        """Play one episode of a level."""
        trajectory = await self._play(task, episode, greedy)
        grading = self._graders.get(task.tag)
        if grading is not None:
            for each in (trajectory, *trajectory.beside):
                await self._grade(each, grading)
        return trajectory

    async def _grade(self, trajectory: Trajectory, grading: EpisodeGrader) -> None:
        if trajectory.status.is_error or not trajectory.turns:
            return
        begun = time.perf_counter()
        grade = await grading.grader.grade(episode_request(trajectory, grading.domain, grading.max_response_tokens))
        trajectory.turns[-1].seconds["reward"] = time.perf_counter() - begun
        if grade.score is None:
            refuse(trajectory, grade.error or "no grade")
        else:
            add(trajectory, grade.parts, {**grade.raw, **grade.metrics})


def episode_request(trajectory: Trajectory, domain: str, max_response_tokens: int) -> RewardRequest:
    """Return the last response of an episode as what verifiers read.

    ``row`` says more of it: all ``responses`` and ``actions``, the ``score`` and the metrics of the environment, the
    ``final_observation``.
    """
    last = trajectory.turns[-1]
    return RewardRequest(
        messages=trajectory.conversation[:-1],
        response=last.response,
        row={
            **trajectory.metrics,
            "responses": [turn.response for turn in trajectory.turns],
            "actions": [turn.action for turn in trajectory.turns],
            "score": trajectory.score,
            "final_observation": trajectory.final_observation,
        },
        domain=domain,
        tag=trajectory.tag,
        finish_reason="length" if trajectory.status is Status.TRUNCATED_LENGTH else "stop",
        response_tokens=len(last.completion_ids),
        max_response_tokens=max_response_tokens,
    )


def graders_by_tag(config: PlayingConfig, graders: Mapping[str, Grader]) -> dict[str, EpisodeGrader]:
    """Return what grades the episodes of each tag, from what grades each domain."""
    longest = config.actor_infer.generating_args.max_new_tokens
    tags = config.tags()
    found = {}
    for domain, reward in config.rewards.items():
        for tag in reward.tags(domain):
            own = tags[tag].max_tokens_per_step if tag in tags else None
            found[tag] = EpisodeGrader(domain, graders[domain], min(longest, own or longest))
    return found
