"""roll: reinforcement learning for language-model agents in text environments.

``roll.train("sokoban")`` trains, ``roll.open_run(folder)`` reads what a run left, ``roll.load_policy(checkpoint)``
talks to what it learned, and ``roll.evaluate(policy, env="SimpleSokoban")`` measures it.
"""

from typing import TYPE_CHECKING

from roll.common.offered import offered

if TYPE_CHECKING:
    from roll.api.endpoint import Endpoint as Endpoint
    from roll.api.endpoint import endpoint as endpoint
    from roll.api.evaluation import evaluate as evaluate
    from roll.api.policy import Policy as Policy
    from roll.api.policy import load_policy as load_policy
    from roll.api.training import open_run as open_run
    from roll.api.training import train as train
    from roll.config import ConfigError as ConfigError
    from roll.runs.stored import StoredRun as StoredRun

__version__ = "0.1.0"

_FROM = {
    "train": "roll.api.training",
    "open_run": "roll.api.training",
    "load_policy": "roll.api.policy",
    "Policy": "roll.api.policy",
    "evaluate": "roll.api.evaluation",
    "endpoint": "roll.api.endpoint",
    "Endpoint": "roll.api.endpoint",
    "StoredRun": "roll.runs.stored",
    "ConfigError": "roll.config",
}
"""What ``roll`` offers, imported when it is asked for: ``import roll`` itself imports nothing else."""

__getattr__, __dir__ = offered(__name__, _FROM)
