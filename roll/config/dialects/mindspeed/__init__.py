"""MindSpeed-RL: ``rl_config``, ``megatron_training``, ``actor_config``, ``critic_config``, ``generate_config``."""

from __future__ import annotations

from typing import Final

from roll.config.dialects.mindspeed.algorithm import RL_ROWS
from roll.config.dialects.mindspeed.generation import GENERATION_ROWS
from roll.config.dialects.mindspeed.schema import SCHEMA_ROWS
from roll.config.dialects.mindspeed.training import TRAINING_ROWS, is_called_alike
from roll.config.dialects.rows import Guide

MINDSPEED: Final = Guide("MindSpeed-RL", (*RL_ROWS, *TRAINING_ROWS, *GENERATION_ROWS, *SCHEMA_ROWS))
"""The GRPO, DAPO and PPO parameters of MindSpeed-RL."""

__all__ = ["MINDSPEED", "is_called_alike"]
