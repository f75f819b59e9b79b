"""What a worker process needs before its work: the user's modules, and what the driver's own script registered."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from roll.algorithms.registry import ADVANTAGES, LOSSES
from roll.common.registry import Registration, Registry
from roll.config.trainer_keys import TrainerKeys
from roll.distributed import worker_context
from roll.envs import ENV_TYPES, TAGS
from roll.experience.priorities import PRIORITIES
from roll.models.quiet import quiet_libraries
from roll.rewards.registry import VERIFIERS
from roll.strategies import STRATEGIES
from roll.tools import TOOLS

_MODULE_KEYS = ("env_modules", "algorithm_modules", "reward_modules", "strategy_modules")


_REGISTRIES: tuple[Registry[Any], ...] = (ENV_TYPES, TAGS, ADVANTAGES, LOSSES, VERIFIERS, STRATEGIES, TOOLS, PRIORITIES)
"""What workers look up by name."""


@dataclass(frozen=True)
class Registered:
    """Names that user code added: environments, algorithms, verifiers, strategies, tools, priorities.

    Travels to other processes.

    Classes and functions of modules travel by name, those of a script by value.

    Attributes:
        names: The registrations of each kind.
    """

    names: Mapping[str, tuple[Registration[Any], ...]]

    @classmethod
    def here(cls) -> Registered:
        """Return what this process knows."""
        return cls({registry.kind: registry.added() for registry in _REGISTRIES})

    def install(self) -> None:
        """Make this process know the same."""
        for registry in _REGISTRIES:
            registry.install(self.names[registry.kind])


def set_up(config: TrainerKeys, registered: Registered) -> None:
    """Prepare the process of a worker; in the driver's own process only the seed is set.

    Every worker starts from the seed of the run, so that what it draws (a critic's head) does not depend on which
    other workers share its process.
    """
    torch.manual_seed(config.seed)
    if not worker_context().own_process:
        return
    quiet_libraries()
    for key in _MODULE_KEYS:
        for module in getattr(config, key, ()):
            importlib.import_module(module)
    registered.install()
