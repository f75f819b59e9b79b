"""The verl guide: its keys by subject."""

from typing import Final

from roll.config.dialects.rows import Guide
from roll.config.dialects.verl.algorithm import ALGORITHM_ROWS
from roll.config.dialects.verl.critic import CRITIC_ROWS
from roll.config.dialects.verl.data import DATA_ROWS
from roll.config.dialects.verl.generation import GENERATION_ROWS
from roll.config.dialects.verl.model import MODEL_ROWS, REFERENCE_ROWS
from roll.config.dialects.verl.policy import POLICY_ROWS
from roll.config.dialects.verl.rewards import REWARD_ROWS
from roll.config.dialects.verl.sampler import SAMPLER_ROWS
from roll.config.dialects.verl.sft import SFT_ROWS
from roll.config.dialects.verl.strategies import STRATEGY_ROWS
from roll.config.dialects.verl.trainer import TRAINER_ROWS

VERL: Final = Guide(
    "verl",
    (
        *ALGORITHM_ROWS,
        *POLICY_ROWS,
        *CRITIC_ROWS,
        *STRATEGY_ROWS,
        *MODEL_ROWS,
        *REFERENCE_ROWS,
        *SAMPLER_ROWS,
        *DATA_ROWS,
        *REWARD_ROWS,
        *TRAINER_ROWS,
        *SFT_ROWS,
        *GENERATION_ROWS,
    ),
    short={"actor": "actor_rollout_ref.actor", "rollout": "actor_rollout_ref.rollout"},
    dtype="bf16",
)
"""The verl configuration guide."""
