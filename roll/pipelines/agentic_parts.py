"""What the agentic pipeline plays with: workers with environments, and the scheduler of their groups."""

from __future__ import annotations

from roll.config import AgenticConfig
from roll.distributed import WorkerSpec
from roll.env_managers.records import EpisodeSpec
from roll.pipelines.core import Core
from roll.pipelines.roles.pool import WorkerPool
from roll.trajectories.model import Trajectory
from roll.workers.classes import worker_class

TRAIN, VAL = "train_env_manager", "val_env_manager"


class Environments:
    """The environments of one section (``train_env_manager``, ``val_env_manager``), in as many workers as it asks for.

    Args:
        pool: The workers.
    """

    def __init__(self, pool: WorkerPool) -> None:
        self.pool = pool
        self.sampled_tokens = 0

    async def play(self, spec: EpisodeSpec, greedy: bool) -> Trajectory:
        """Play one episode; if its worker dies, another one plays it from the same seeds."""
        trajectory: Trajectory = await self.pool.call("play", spec, greedy)
        self.sampled_tokens += trajectory.completion_tokens
        return trajectory


async def start_environments(config: AgenticConfig, core: Core, section: str) -> Environments:
    """Start the workers of a section of a configuration that the preflight check has passed."""
    text = core if config.cluster == "local" else None
    arguments = (config, section, core.registered, core.engines.engines, text, core.activity)
    group = await core.cluster.start(section, WorkerSpec(cls=worker_class(config, section), args=arguments))

    async def tell(rank: int) -> None:
        await group.all("engine_restarted", rank)

    core.engines.on_restart(tell)
    return Environments(WorkerPool(group))
