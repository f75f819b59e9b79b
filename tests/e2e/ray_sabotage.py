"""Named in ``env_modules`` or ``algorithm_modules``: kills the worker process that it is told to, once in a run.

``ROLL_TEST_FAULTS`` names who and when: ``env:9`` (a worker that begins its ninth episode), ``put:9`` (one that has put
its ninth episode or answer elsewhere), ``engine:40`` (an engine at its fortieth request), ``opponent:40`` (one of an
opponent), ``train:3`` (rank 1 at its third optimiser step), ``learner:2`` (what learns for the driver, at its second
batch), ``append:2`` (the same, at its second call of a store's ``append``).
``ROLL_TEST_FOLDER`` is where it is noted that it happened, so that the successor lives. Does nothing in the driver.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from roll.distributed import worker_context
from roll.experience.outlines import SealedStore
from roll.pipelines.learning.learner_worker import LearnerWorker
from roll.pipelines.sampling import answers_elsewhere
from roll.workers import environment
from roll.workers.engine import EngineWorker
from roll.workers.environment import EnvironmentWorker
from roll.workers.train import TrainWorker

FAULTS = dict(fault.split(":") for fault in os.environ.get("ROLL_TEST_FAULTS", "").split(",") if fault)
FOLDER = Path(os.environ.get("ROLL_TEST_FOLDER", "."))
seen: Counter[str] = Counter()


def reached(who: str) -> None:
    seen[who] += 1
    if seen[who] != int(FAULTS.get(who, 0)) or not worker_context().own_process:
        return
    try:
        (FOLDER / f"killed-{who}").touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def role() -> str:
    """Return whose engine it is; in the driver, where the policy's engine is called without a detour, nobody's."""
    try:
        return worker_context().role
    except RuntimeError:
        return ""


def before(cls: type[Any], method: str, who: str, counts: Callable[[], bool] = lambda: True) -> None:
    original = getattr(cls, method)

    def wrapped(self: Any, *arguments: Any) -> Any:
        if counts():
            reached(who)
        return original(self, *arguments)

    async def wrapped_coroutine(self: Any, *arguments: Any) -> Any:
        if counts():
            reached(who)
        return await original(self, *arguments)

    setattr(cls, method, wrapped if cls is TrainWorker else wrapped_coroutine)


_seal = environment.seal


async def _sealed(*arguments: Any) -> Any:
    outline = await _seal(*arguments)
    reached("put")
    return outline


environment.seal = answers_elsewhere.seal = _sealed
before(EnvironmentWorker, "play", "env")
before(LearnerWorker, "take", "learner")
before(SealedStore, "append", "append")
before(EngineWorker, "generate", "engine", lambda: role() == "actor_infer")
before(EngineWorker, "generate", "opponent", lambda: role().startswith("opponents."))
before(TrainWorker, "train_step", "train", lambda: worker_context().rank == 1)
