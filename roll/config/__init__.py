"""What a run is: strict models of every key, loading through Hydra, and errors that name the fix.

Imports neither torch nor ray nor transformers; Hydra itself is imported by :func:`launch` alone.
"""

from roll.config.agentic import AgenticConfig
from roll.config.batch_plan import BatchPlan
from roll.config.distill import DistillConfig, PromptDistillConfig
from roll.config.distill_rows import RowDistillConfig
from roll.config.dpo import DPOConfig
from roll.config.env_manager import CustomEnvConfig, EnvManagerConfig, RewardNormalization, Timeouts
from roll.config.errors import ConfigError, ConfigWarning, Problem, RunError
from roll.config.evaluation import EvaluationConfig
from roll.config.kinds import register_pipeline
from roll.config.launching import launch
from roll.config.loading import load
from roll.config.playing import PlayingConfig
from roll.config.reward_model import RewardModelConfig
from roll.config.rl import RLConfig
from roll.config.rlvr import RLVRConfig
from roll.config.run import RunConfig
from roll.config.runnable import require_runnable
from roll.config.sampling import SamplingConfig
from roll.config.sft import SFTConfig
from roll.config.strategies import require_available
from roll.config.worker import GeneratingArgs, ModelArgs, StrategyArgs, TrainingArgs, WorkerConfig

__all__ = [
    "AgenticConfig",
    "BatchPlan",
    "ConfigError",
    "ConfigWarning",
    "CustomEnvConfig",
    "DPOConfig",
    "DistillConfig",
    "EnvManagerConfig",
    "EvaluationConfig",
    "GeneratingArgs",
    "ModelArgs",
    "PlayingConfig",
    "RLConfig",
    "Problem",
    "PromptDistillConfig",
    "RLVRConfig",
    "RewardModelConfig",
    "RewardNormalization",
    "RowDistillConfig",
    "RunConfig",
    "RunError",
    "SFTConfig",
    "SamplingConfig",
    "StrategyArgs",
    "Timeouts",
    "TrainingArgs",
    "WorkerConfig",
    "launch",
    "load",
    "register_pipeline",
    "require_available",
    "require_runnable",
]
