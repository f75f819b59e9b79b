"""Which class the workers of a role are: the project's, or a subclass that the configuration names."""

from __future__ import annotations

import importlib
from typing import Any

from roll.config import RunConfig
from roll.config.strategies import ROLE_ABILITY, Ability
from roll.workers.engine import EngineWorker
from roll.workers.engine_scores import EngineScoreWorker
from roll.workers.environment import EnvironmentWorker
from roll.workers.reward import RewardWorker
from roll.workers.train import ScoreWorker, TrainWorker

_DEFAULTS: dict[str, type[Any]] = {
    "actor_train": TrainWorker,
    "critic": TrainWorker,
    "reference": ScoreWorker,
    "actor_infer": EngineWorker,
    "judges": EngineWorker,
    "opponents": EngineWorker,
    "train_env_manager": EnvironmentWorker,
    "val_env_manager": EnvironmentWorker,
}


def worker_class(config: RunConfig, role: str) -> type[Any]:
    """Return the class of the workers of ``role``, a name of :func:`roll.distributed.plan_placement`'s.

    Raises:
        ImportError: If ``worker_cls`` of the role is not the import path of a subclass of the project's own.
    """
    default = _default(config, role)
    section: Any = config
    for name in role.split("."):
        section = section.get(name) if isinstance(section, dict) else getattr(section, name, None)
    path = getattr(section, "worker_cls", None)
    if path is None:
        return default
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module), name, None) if module else None
    if not (isinstance(found, type) and issubclass(found, default)):
        raise ImportError(f"{path!r} is not the import path of a subclass of {default.__module__}.{default.__name__}")
    return found


def _default(config: RunConfig, role: str) -> type[Any]:
    kind = role.partition(".")[0]
    if ROLE_ABILITY.get(kind) is Ability.SCORE_TOKENS:
        about = dict(config.roles())[role].strategy_args.about
        return EngineScoreWorker if about.is_engine_for(Ability.SCORE_TOKENS) else ScoreWorker
    return _DEFAULTS.get(kind, RewardWorker)
