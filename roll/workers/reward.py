"""A worker that grades the responses of one domain."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from roll.config.grading_keys import GradedKeys
from roll.config.judges import judging
from roll.distributed import worker_context
from roll.rewards.base import Grade, RewardRequest
from roll.rewards.build import build_rubrics
from roll.rewards.concurrency import ConcurrencyLimit
from roll.schedulers.generation import GenerationScheduler
from roll.workers.engine_client import Engines
from roll.workers.loading import Text, load_text
from roll.workers.reward_engines import judges_of, reward_resources
from roll.workers.setup import Registered, set_up


class RewardWorker:
    """Holds the rubric of a domain, with the reward model or sandbox that its verifiers need.

    Args:
        config: The run.
        domain: Whose responses it grades.
        registered: What user code registered in the driver.
        engines: What samples, for verifiers that ask the policy.
        judges: What samples from each judge of the run, by name.
        text: Tokenizer and renderer; ``None`` loads them.
        limit: Responses graded at a time by all workers of this process; ``None`` is ``max_concurrent_rewards``.

    Raises:
        ConfigError: If a verifier cannot be made.
    """

    def __init__(
        self,
        config: GradedKeys,
        domain: str,
        registered: Registered,
        engines: Engines,
        text: Text | None = None,
        limit: ConcurrencyLimit | None = None,
        judges: Mapping[str, Engines] = MappingProxyType({}),
    ) -> None:
        set_up(config, registered)
        context = worker_context()
        own = uuid.uuid4().hex[:8] if context.own_process else ""
        self._engines, self._judges = engines, judges
        share = partial(GenerationScheduler.for_run, prefix=f"{own}{domain}/", part=context.part)
        self._generation = share(config, engines.clients())
        self._judging = {
            name: share(judging(config, name), judges[name].clients()) for name in judges_of(config, domain)
        }
        resources = reward_resources(config, domain, text or load_text(config), self._generation, self._judging)
        alone = {domain: config.rewards[domain]} if domain in config.rewards else {}
        rubrics = build_rubrics(config.model_copy(update={"rewards": alone}), resources, limit=limit)
        self._rubric = rubrics[domain]

    async def grade(self, request: RewardRequest) -> Grade:
        """Return the grade of one response."""
        return await self._rubric.grade(request)

    async def engine_restarted(self, rank: int) -> None:
        """Take note that an engine that was dead lives again."""
        self._generation.replace(rank, self._engines.client(rank))

    async def judge_restarted(self, name: str, rank: int) -> None:
        """Take note that an engine of a judge that was dead lives again."""
        if name in self._judging:
            self._judging[name].replace(rank, self._judges[name].client(rank))

    async def close(self) -> None:
        """Stop what grades."""
        await self._rubric.close()
