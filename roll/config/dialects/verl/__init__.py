"""The verl guide: its keys by subject."""

from typing import Final

from roll.config.dialects.rows import Guide
from roll.config.dialects.verl.policy import POLICY_ROWS
from roll.config.dialects.verl.run import RUN_ROWS

VERL: Final = Guide("verl", (*POLICY_ROWS, *RUN_ROWS), short={"actor": "actor_rollout_ref.actor"})
"""The verl configuration guide."""
