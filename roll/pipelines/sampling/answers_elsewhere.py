"""Answers to prompts of which the driver has outlines: the workers that grade them ask the engines too."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from roll.config.grading_keys import GradedKeys
from roll.config.prompt_keys import PromptKeys
from roll.data.prompts import Prompt
from roll.distributed import worker_context
from roll.generation import Completion
from roll.pipelines.learning.expert_rows import Ungraded
from roll.pipelines.roles.core import Generating
from roll.pipelines.roles.pool import WorkerPool
from roll.pipelines.sampling.prompt_play import prompt_play
from roll.rendering import spoken
from roll.rewards.base import Grade, RewardRequest
from roll.rewards.concurrency import ConcurrencyLimit
from roll.schedulers.answers import PromptPlay
from roll.schedulers.generation import GenerationScheduler
from roll.schedulers.tasks import Play, Task
from roll.trajectories.model import Trajectory
from roll.trajectories.sealed import seal
from roll.trajectories.store import Phase
from roll.workers.engine_client import Engines
from roll.workers.environment import Parcels
from roll.workers.loading import Text, load_text
from roll.workers.reward import RewardWorker
from roll.workers.setup import Registered, set_up


class KeptPrompts(Protocol):
    """The prompts of a run, in another process."""

    async def at(self, row: int, phase: Phase) -> Prompt:
        """Return the prompt of a row of those for training, or for evaluations."""
        ...

    async def spoken_by_expert(self, number: int) -> list[int]:
        """Return the tokens of an answer of an expert."""
        ...


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What workers are given so that neither prompts nor answers pass through the driver.

    Attributes:
        parcels: Where tokens and texts of trajectories are put.
        prompts: Where prompts are, if the run has some.
    """

    parcels: Parcels
    prompts: KeptPrompts


class AnsweringWorker:
    """Answers prompts of a domain, grades the answers, and puts their tokens and texts where the driver is not.

    Args:
        graded_by: The class that grades.
        elsewhere: Where prompts are, and where answers go.
        config: The run.
        domain: Whose prompts it answers.
        registered: What user code registered in the driver.
        engines: What samples.
        text: Tokenizer and renderer; ``None`` loads them.
        limit: Responses graded at a time by all workers of this process.
        judges: What samples from each judge of the run, by name.

    Raises:
        ConfigError: If a verifier cannot be made.
    """

    def __init__(
        self,
        graded_by: type[RewardWorker],
        elsewhere: Elsewhere,
        config: GradedKeys,
        domain: str,
        registered: Registered,
        engines: Engines,
        text: Text | None,
        limit: ConcurrencyLimit | None,
        judges: Mapping[str, Engines],
    ) -> None:
        assert isinstance(config, PromptKeys)
        set_up(config, registered)
        text = text or load_text(config)
        self._decoder = text.renderer
        self._grader = graded_by(config, domain, registered, engines, text, limit, judges)
        self._elsewhere = elsewhere
        self._engines = engines
        # Several workers share the engines: their requests must not have the same names.
        prefix = f"{uuid.uuid4().hex[:8]}/"
        part = worker_context().part
        self._generation = GenerationScheduler.for_run(config, engines.clients(), prefix=prefix, part=part)
        asking = Generating(
            tokenizer=text.tokenizer, renderer=text.renderer, generation=self._generation, activity=None
        )
        graders = {domain: self._grader}
        self._plays: dict[Phase, Play[Prompt]] = {
            "train": prompt_play(config, asking, graders, config.actor_infer.generating_args, training=True)
        }
        if config.validation:
            self._plays["val"] = prompt_play(config, asking, graders, config.validation_generating)

    async def answer(self, phase: Phase, task: Task[int], episode: int, greedy: bool) -> Trajectory:
        """Answer the prompt of a row once; return the outline."""
        prompt = await self._elsewhere.prompts.at(task.what, phase)
        whole = Task(prompt, task.tag, task.group_id, task.size, task.number, task.domain)
        answered = await self._plays[phase](whole, episode, greedy)
        return await seal(answered, self._elsewhere.parcels.put)

    async def grade_expert(self, answer: Ungraded) -> float | None:
        """Return what an answer of an expert to a training prompt earns; ``None`` where no verifier could say."""
        play = self._plays["train"]
        if not isinstance(play, PromptPlay):
            return None
        prompt = await self._elsewhere.prompts.at(answer.row, "train")
        completion = Completion(await self._elsewhere.prompts.spoken_by_expert(answer.number), [], "stop")
        response = spoken(completion, self._decoder)
        return (await play.grade_recorded(prompt, response, f"{answer.group_id}/expert", 0, completion)).score

    async def grade(self, request: RewardRequest) -> Grade:
        """Return the grade of one response."""
        return await self._grader.grade(request)

    async def generation_metrics(self) -> dict[str, float]:
        """Return what the scheduler of this worker's requests counts."""
        return self._generation.metrics()

    async def engine_restarted(self, rank: int) -> None:
        """Take note that an engine that was dead lives again."""
        self._generation.replace(rank, self._engines.client(rank))
        await self._grader.engine_restarted(rank)

    async def judge_restarted(self, name: str, rank: int) -> None:
        """Take note that an engine of a judge that was dead lives again."""
        await self._grader.judge_restarted(name, rank)

    async def close(self) -> None:
        """Stop what grades."""
        await self._grader.close()


class AnswersElsewhere:
    """Has workers answer prompts, named by their rows; see :class:`roll.schedulers.tasks.Play`.

    Args:
        pools: The workers of each domain (:class:`AnsweringWorker`).
        phase: What the prompts are for.
    """

    def __init__(self, pools: Mapping[str, WorkerPool], phase: Phase) -> None:
        self.pools = pools
        self._phase = phase

    async def __call__(self, task: Task[int], episode: int, greedy: bool) -> Trajectory:
        """Have a prompt answered once; if its worker dies, another one answers it."""
        answered: Trajectory = await self.pools[task.domain].call("answer", self._phase, task, episode, greedy)
        return answered
