"""The keys of ROLL's own files that are not native: its classes, its engines' options, its older spellings."""

from __future__ import annotations

from typing import Final

from roll.config.dialects.rows import Guide
from roll.config.dialects.upstream_roll.algorithm import ALGORITHM
from roll.config.dialects.upstream_roll.contradictions import CONTRADICTIONS
from roll.config.dialects.upstream_roll.distillation import DISTILLATION
from roll.config.dialects.upstream_roll.elsewhere import ELSEWHERE
from roll.config.dialects.upstream_roll.environments import ENVIRONMENTS
from roll.config.dialects.upstream_roll.rewards import REWARDS
from roll.config.dialects.upstream_roll.roles import ROLES
from roll.config.dialects.upstream_roll.run import RUN
from roll.config.dialects.upstream_roll.schema import OF_EVERY_RUN, SCHEMA

ROLL: Final = Guide("ROLL", (*RUN, *ALGORITHM, *ROLES, *REWARDS, *ENVIRONMENTS, *DISTILLATION, *SCHEMA), beside=True)
"""Keys that stand beside native ones; a ``*`` is any name."""

ROLL_FILE: Final = Guide("ROLL", (*ROLL.rows, *CONTRADICTIONS, *ELSEWHERE, *OF_EVERY_RUN), beside=True, dtype="bf16")
"""The same for a file that was written for ROLL, where native keys too have ROLL's meaning."""

__all__ = ["ROLL", "ROLL_FILE"]
