"""What a run is: strict models of every key, loading through Hydra, and errors that name the fix.

Imports neither torch nor ray nor transformers; Hydra itself is imported by :func:`launch` alone. What the package
offers is imported when it is asked for: a grader, or what plays an environment, needs the errors alone.
"""

from typing import TYPE_CHECKING

from roll.common.offered import offered

if TYPE_CHECKING:
    from roll.config.agentic import AgenticConfig as AgenticConfig
    from roll.config.batch_plan import BatchPlan as BatchPlan
    from roll.config.distill import DistillConfig as DistillConfig
    from roll.config.distill import PromptDistillConfig as PromptDistillConfig
    from roll.config.distill_rows import RowDistillConfig as RowDistillConfig
    from roll.config.dpo import DPOConfig as DPOConfig
    from roll.config.env_manager import CustomEnvConfig as CustomEnvConfig
    from roll.config.env_manager import EnvManagerConfig as EnvManagerConfig
    from roll.config.env_manager import RewardNormalization as RewardNormalization
    from roll.config.env_manager import Timeouts as Timeouts
    from roll.config.errors import ConfigError as ConfigError
    from roll.config.errors import ConfigWarning as ConfigWarning
    from roll.config.errors import Problem as Problem
    from roll.config.errors import RunError as RunError
    from roll.config.evaluation import EvaluationConfig as EvaluationConfig
    from roll.config.kinds import register_pipeline as register_pipeline
    from roll.config.launching import launch as launch
    from roll.config.loading import load as load
    from roll.config.playing import PlayingConfig as PlayingConfig
    from roll.config.reward_model import RewardModelConfig as RewardModelConfig
    from roll.config.rl import RLConfig as RLConfig
    from roll.config.rlvr import RLVRConfig as RLVRConfig
    from roll.config.run import RunConfig as RunConfig
    from roll.config.runnable import require_runnable as require_runnable
    from roll.config.sampling import SamplingConfig as SamplingConfig
    from roll.config.sft import SFTConfig as SFTConfig
    from roll.config.strategies import require_available as require_available
    from roll.config.worker import GeneratingArgs as GeneratingArgs
    from roll.config.worker import ModelArgs as ModelArgs
    from roll.config.worker import StrategyArgs as StrategyArgs
    from roll.config.worker import TrainingArgs as TrainingArgs
    from roll.config.worker import WorkerConfig as WorkerConfig

_FROM = {
    "AgenticConfig": "roll.config.agentic",
    "BatchPlan": "roll.config.batch_plan",
    "DistillConfig": "roll.config.distill",
    "PromptDistillConfig": "roll.config.distill",
    "RowDistillConfig": "roll.config.distill_rows",
    "DPOConfig": "roll.config.dpo",
    "CustomEnvConfig": "roll.config.env_manager",
    "EnvManagerConfig": "roll.config.env_manager",
    "RewardNormalization": "roll.config.env_manager",
    "Timeouts": "roll.config.env_manager",
    "ConfigError": "roll.config.errors",
    "ConfigWarning": "roll.config.errors",
    "Problem": "roll.config.errors",
    "RunError": "roll.config.errors",
    "EvaluationConfig": "roll.config.evaluation",
    "register_pipeline": "roll.config.kinds",
    "launch": "roll.config.launching",
    "load": "roll.config.loading",
    "PlayingConfig": "roll.config.playing",
    "RewardModelConfig": "roll.config.reward_model",
    "RLConfig": "roll.config.rl",
    "RLVRConfig": "roll.config.rlvr",
    "RunConfig": "roll.config.run",
    "require_runnable": "roll.config.runnable",
    "SamplingConfig": "roll.config.sampling",
    "SFTConfig": "roll.config.sft",
    "require_available": "roll.config.strategies",
    "GeneratingArgs": "roll.config.worker",
    "ModelArgs": "roll.config.worker",
    "StrategyArgs": "roll.config.worker",
    "TrainingArgs": "roll.config.worker",
    "WorkerConfig": "roll.config.worker",
}

__getattr__, __dir__ = offered(__name__, _FROM)
